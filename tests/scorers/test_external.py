"""A user's own scorer: a function or a class in a file, or what an installed package offers."""

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from chunk_grpo.config.scorers import ExternalScorer
from chunk_grpo.errors import ConfigError, DataError, RefusedError, Stopped, TransientError
from chunk_grpo.scorers.base import ScoreBatch, Scorer
from chunk_grpo.scorers.running import source_files
from chunk_grpo.scorers.running.registry import make_scorer
from tests.scorers.checkpoints_clip import make_clip
from tests.scorers.servers import ROOT

EXAMPLE = '''
def brightness(images, prompts, metadata):
    """Brightness of images in [0, 1]: uint8 [B, H, W, 3] to B numbers."""
    return images.mean(axis=(1, 2, 3)) / 255
'''
"""docs/own_scorers.md shows it."""

HERE = "tests.scorers.test_external"
PICTURES = np.stack([np.full((2, 2, 3), value, np.uint8) for value in (0, 51, 255)])
BATCH = ScoreBatch(PICTURES, ["a", "bb", "ccc"], [{"n": 1}, {"n": 2}, {"n": 3}], [0, 0, 1])


def scorer(source: str, version: int = 3, **options: object) -> Scorer:
    common = {"kind": "external", "splits": ("eval",), "batch_size": 2}
    return make_scorer("mine", ExternalScorer(**common, source=source, version=version, options=options))


def test_one_function_in_one_file_is_a_scorer(tmp_path, monkeypatch):
    (tmp_path / "my_rewards.py").write_text(EXAMPLE)
    monkeypatch.syspath_prepend(tmp_path)
    made = scorer("my_rewards:brightness")
    made.check()
    assert made.score(BATCH).values.tolist() == [0.0, 0.2, 1.0]
    assert (made.name, made.version, made.groupwise) == ("mine", 3, False)


def lengths(
    images: NDArray[np.uint8], prompts: Sequence[str], metadata: Sequence[Mapping[str, int]], weight: float
) -> tuple[tuple[float, ...], dict[str, list[int]]]:
    details = {"n": [m["n"] for m in metadata], "rows": [len(images)] * len(images)}
    return tuple(weight * len(p) for p in prompts), details


def moved(images, prompts, metadata, sources, scale=1.0):
    return [scale * float(np.abs(a - b).mean()) for a, b in zip(images / 255, sources / 255, strict=True)]


class Moved:
    def score(self, images, prompts, metadata, *, sources):
        return moved(images, prompts, metadata, sources)


@pytest.mark.parametrize("name", ["moved", "Moved"])
def test_a_parameter_sources_gets_the_edited_pictures(name):
    """Two images at a time, with their own pictures."""
    made = scorer(f"{HERE}:{name}")
    assert made.needs == {"prompt", "metadata", "sources"}
    edited = replace(BATCH, sources=BATCH.images[::-1])
    apart = np.abs(BATCH.images[0] / 255 - BATCH.images[2] / 255).mean()
    assert made.score(edited).values == pytest.approx([apart, 0.0, apart])
    with pytest.raises(DataError, match=r"scorers\.mine: judges the pictures .*set picture_field of the prompt files"):
        made.score(BATCH)


def test_a_function_may_take_options_and_give_details():
    scores = scorer(f"{HERE}:lengths", weight=0.5).score(BATCH)
    assert scores.values.tolist() == [0.5, 1.0, 1.5]
    assert scores.details["n"].tolist() == [1, 2, 3]
    assert scores.details["rows"].tolist() == [2, 2, 1]  # batch_size images at a time
    assert scores.values.dtype == np.float64


class Counting:
    made: ClassVar[list["Counting"]] = []

    def __init__(self, start: int) -> None:
        self.count, self.open = start, True
        Counting.made.append(self)

    def score(self, images: NDArray[np.uint8], prompts: Sequence[str], metadata: object) -> list[int]:
        self.count += 1
        return [self.count] * len(images)

    def close(self) -> None:
        self.open = False


def test_a_class_is_made_at_the_first_use_and_closed():
    Counting.made.clear()
    made = scorer(f"{HERE}:Counting", start=10)
    made.check()
    made.spec_hash()
    assert made.score(BATCH.rows([])).values.shape == (0,)
    assert not Counting.made  # nor without images
    assert made.score(BATCH).values.tolist() == [11, 11, 12]
    assert len(Counting.made) == 1
    made.close()
    assert not Counting.made[0].open


class Rank:
    groupwise = True

    def score(self, images: NDArray[np.uint8], prompts: object, metadata: object, groups: Sequence[int]) -> list[float]:
        """Brightness above the group's mean."""
        bright = images.mean(axis=(1, 2, 3))
        return [float(b - bright[np.array(groups) == g].mean()) for b, g in zip(bright, groups, strict=True)]


def test_a_groupwise_class_sees_whole_groups():
    made = scorer(f"{HERE}:Rank")
    assert made.groupwise
    assert made.score(BATCH).values.tolist() == [-25.5, 25.5, 0.0]


def test_source_version_and_options_are_its_identity():
    hashes = {
        scorer(f"{HERE}:lengths", weight=1.0).spec_hash(),
        scorer(f"{HERE}:lengths", weight=2.0).spec_hash(),
        scorer(f"{HERE}:Rank").spec_hash(),
        scorer(f"{HERE}:Rank", version=4).spec_hash(),
    }
    assert len(hashes) == 4


def test_an_installed_package_may_offer_scorers(monkeypatch):
    offered = EntryPoints([EntryPoint("sharpness", f"{HERE}:lengths", source_files.ENTRY_POINTS)])
    monkeypatch.setattr(source_files, "entry_points", lambda group: offered.select(group=group))
    assert scorer("sharpness", weight=1.0).score(BATCH).values.tolist() == [1, 2, 3]
    with pytest.raises(ConfigError, match=r"got 'sharp'; the installed packages offer: sharpness$"):
        scorer("sharp")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("1 / 0", "(ZeroDivisionError: division by zero). Mend broken_rewards, or name another source."),
        ("raise SystemExit(0)", "(SystemExit: 0). Mend"),
        ("def f(:", "(SyntaxError: "),
        (
            "import no_such_package.models",
            "(ModuleNotFoundError: No module named 'no_such_package'). The module needs no_such_package: install it",
        ),
    ],
)
def test_import_error_of_module_is_reported(line, said, tmp_path, monkeypatch):
    (tmp_path / "broken_rewards.py").write_text(f"{line}\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError) as caught:
        scorer("broken_rewards:f")
    assert str(caught.value).startswith(f"scorers.mine.source: cannot import broken_rewards:f {said}")


def test_a_signal_while_it_is_imported_comes_through(tmp_path, monkeypatch):
    (tmp_path / "slow_rewards.py").write_text("from chunk_grpo.errors import Stopped\nraise Stopped('stopped')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(Stopped, match="stopped"):
        scorer("slow_rewards:f")


class Ungrouped:
    groupwise = True

    def score(self, images: object, prompts: object, metadata: object) -> list[float]:
        return []


class Scoreless:
    pass


@pytest.mark.parametrize(
    ("source", "options", "said"),
    [
        ("sharp", {}, r"source: must be module:attribute, .* or an entry point of .*, got 'sharp'"),
        (":f", {}, "source: must be module:attribute, .* or an entry point .*, got ':f'"),
        ("os:sep", {}, "source: must be a function or a class, but os:sep is '/'"),
        ("no_such_module:f", {}, r"source: cannot import .* \(ModuleNotFoundError: .* A module must be in the folder"),
        (f"{HERE}:nothing", {}, r"source: cannot import .*:nothing \(AttributeError: module .* Mend .*, or name"),
        (f"{HERE}:Ungrouped", {}, r"source: score of .*self, images, prompts, metadata, groups.* too many"),
        (f"{HERE}:Scoreless", {}, r"source: the class .* must have a method score\(images, prompts"),
        (f"{HERE}:lengths", {}, "options: lengths of .* missing a required argument: 'weight'"),
        (f"{HERE}:lengths", {"weight": 1, "wait": 2}, r"options: .* weight=1, wait=2.* unexpected .*'wait'"),
        (f"{HERE}:lengths", {"weight": 1, "prompts": 2}, "options: .* multiple values for .*'prompts'"),
        (f"{HERE}:Counting", {}, "options: Counting of .* missing a required argument: 'start'"),
    ],
)
def test_uncallable_source_is_reported_before_scoring(source, options, said):
    with pytest.raises(ConfigError, match=rf"^scorers\.mine\.{said}"):
        scorer(source, **options)


def test_callable_without_signature_is_accepted():
    """`max` of Python's own has none."""
    with pytest.raises(ValueError):
        inspect.signature(max)
    scorer("builtins:max").check()


def uneven(images: NDArray[np.uint8], prompts: object, metadata: object) -> list[float]:
    """One too few of two images, one too many of one: three of three in all."""
    return [1.0] if len(images) == 2 else [2.0, 3.0]


def test_each_call_gives_a_number_for_each_of_its_images():
    with pytest.raises(DataError, match=r"scorer mine \(.*\): needs one value for each of 2 .* an array of \[1\]\."):
        scorer(f"{HERE}:uneven").score(BATCH)


def answering(images: object, prompts: object, metadata: object, answer: object) -> object:
    return torch.ones(2, requires_grad=True) if answer == "tensor" else answer


@pytest.mark.parametrize(
    "answer",
    [
        ([0.25, 0.5], [1.0, 2.0], [3.0, 4.0]),
        (["a", "b"]),
        ([0.25, 0.5], {"name": [[1.0], [2.0, 3.0]]}),
        "tensor",
        {"value": [0.25, 0.5]},
        None,
    ],
)
def test_rejects_invalid_return_value(answer):
    with pytest.raises(DataError, match=r"mine: .*answering must return a number .* or a pair|an array of \[3, 2\]"):
        scorer(f"{HERE}:answering", answer=answer).score(BATCH.rows([0, 1]))


def careless(images: object, prompts: object, metadata: list[dict[str, str]]) -> list[float]:
    return [len(each["txt"]) for each in metadata]


def test_an_error_names_the_scorer_the_line_and_the_keys_of_metadata(caplog: pytest.LogCaptureFixture) -> None:
    batch = ScoreBatch(BATCH.images[:2], BATCH.prompts[:2], [{"text": "a"}, {"source": "b"}], [0, 1])
    line = careless.__code__.co_firstlineno + 1
    with pytest.raises(DataError) as caught:
        scorer(f"{HERE}:careless").score(batch)
    assert str(caught.value) == (
        f"scorers.mine: {HERE}:careless raised KeyError: 'txt' (test_external.py, line {line}). "
        "The keys of metadata are: source, text. Mend it, and run the same command again."
    )
    (frames,) = caplog.messages
    assert frames.lstrip().startswith(f'File "{__file__}", line {line}, in careless')
    assert "running/external.py" not in frames


def of_the_documentation(file: str) -> dict[str, Any]:
    """Names of an example's file."""
    page = (ROOT / "docs" / "own_scorers.md").read_text(encoding="utf-8")
    found = re.search(rf"^# {file}\n(.*?)^```", page, re.M | re.S)
    assert found
    names: dict[str, Any] = {}
    exec(compile(found[1], file, "exec"), names)
    return names


def test_the_example_of_votes_is_the_ridge_fit_and_its_left_out_values(tmp_path, capsys):
    """Liked pictures are bright. Each left-out value is compared with a fit to all other pictures."""
    votes, stream = of_the_documentation("my_votes.py")["Votes"], np.random.default_rng(0)
    checkpoint, folder, pictures = make_clip(tmp_path / "clip"), tmp_path / "votes", []
    for name, level in (("disliked", 60), ("liked", 190)):
        (folder / name).mkdir(parents=True)
        for number in range(6):
            pictures.append(np.clip(level + stream.normal(0, 30, (24, 24, 3)), 0, 255).astype(np.uint8))
            Image.fromarray(pictures[-1]).save(folder / name / f"{number}.png")
    made = votes(str(folder), str(checkpoint))
    assert capsys.readouterr().out == "votes: 100% of 12 guessed right when left out\n"
    scores = made.score(np.stack(pictures), [""] * 12, [{}] * 12)
    assert scores[6:].min() > scores[:6].max()
    x, y = made.embed(pictures), np.repeat([-1.0, 1.0], 6)
    assert made.line == pytest.approx(np.linalg.solve(x.T @ x + 0.1 * np.eye(x.shape[1]), x.T @ y))
    for file in (folder / "liked").iterdir():
        Image.fromarray(pictures[int(file.stem)]).save(file)  # the same as the disliked ones
    with pytest.raises(ValueError, match="0% of the votes are guessed right, below 65%; vote on more"):
        votes(str(folder), str(checkpoint))
    for file in (folder / "liked").iterdir():
        file.unlink()
    with pytest.raises(ValueError, match=r"needs two pictures .* got \[6, 0\]"):
        votes(str(folder), str(checkpoint))


def test_the_example_of_the_documentation_refuses_and_waits(monkeypatch):
    names = of_the_documentation("my_judge.py")
    images = np.full((2, 2, 2, 3), 51, dtype=np.uint8)
    value, refused = names["darkness"](images, ["a circle", "a knife"], [{}, {}])
    assert value == pytest.approx(0.8)
    assert isinstance(refused, RefusedError) and str(refused) == "the prompt has knife"
    monkeypatch.setattr("os.getloadavg", lambda: (2000.0, 0.0, 0.0))
    with pytest.raises(TransientError):
        names["darkness"](images, ["a", "b"], [{}, {}])
