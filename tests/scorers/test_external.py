"""A user's own scorer: a function or a class in a file, or what an installed package offers."""

from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from chunk_grpo.config.scorers import ExternalScorer
from chunk_grpo.errors import ConfigError
from chunk_grpo.scorers import external
from chunk_grpo.scorers.base import ScoreBatch, Scorer
from chunk_grpo.scorers.registry import make_scorer

EXAMPLE = '''
def brightness(images, prompts, metadata):
    """How bright an image is, 0 to 1: uint8 [B, H, W, 3] to B numbers."""
    return images.mean(axis=(1, 2, 3)) / 255
'''
"""docs/scorers.md shows it."""

HERE = "tests.scorers.test_external"
PICTURES = np.stack([np.full((2, 2, 3), value, np.uint8) for value in (0, 51, 255)])
BATCH = ScoreBatch(PICTURES, ["a", "bb", "ccc"], [{"n": 1}, {"n": 2}, {"n": 3}], [0, 0, 1])


def scorer(source: str, **options: object) -> Scorer:
    settings = ExternalScorer(
        kind="external", splits=("eval",), batch_size=2, source=source, version=3, options=options
    )
    return make_scorer("mine", settings)


def test_one_function_in_one_file_is_a_scorer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_rewards.py").write_text(EXAMPLE)
    monkeypatch.syspath_prepend(tmp_path)
    made = scorer("my_rewards:brightness")
    made.check()
    assert made.score(BATCH).values.tolist() == [0.0, 0.2, 1.0]
    assert (made.name, made.version, made.groupwise) == ("mine", 3, False)


def lengths(
    images: NDArray[np.uint8], prompts: Sequence[str], metadata: Sequence[Mapping[str, int]], weight: float
) -> tuple[list[float], dict[str, list[int]]]:
    return [weight * len(p) for p in prompts], {
        "n": [m["n"] for m in metadata],
        "rows": [len(images)] * len(images),
    }


def test_a_function_may_take_options_and_give_details() -> None:
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


def test_a_class_is_made_at_the_first_use_and_closed() -> None:
    Counting.made.clear()
    made = scorer(f"{HERE}:Counting", start=10)
    made.check()
    made.spec_hash()
    assert not Counting.made
    assert made.score(BATCH).values.tolist() == [11, 11, 12]
    assert len(Counting.made) == 1
    made.close()
    assert not Counting.made[0].open


class Rank:
    groupwise = True

    def score(
        self, images: NDArray[np.uint8], prompts: object, metadata: object, groups: Sequence[int]
    ) -> list[float]:
        """How much brighter than the group's mean."""
        bright = images.mean(axis=(1, 2, 3))
        return [float(b - bright[np.array(groups) == g].mean()) for b, g in zip(bright, groups, strict=True)]


def test_a_groupwise_class_sees_whole_groups() -> None:
    made = scorer(f"{HERE}:Rank")
    assert made.groupwise
    assert made.score(BATCH).values.tolist() == [-25.5, 25.5, 0.0]


def test_source_version_and_options_are_its_identity() -> None:
    hashes = {
        scorer(f"{HERE}:lengths", weight=1.0).spec_hash(),
        scorer(f"{HERE}:lengths", weight=2.0).spec_hash(),
        scorer(f"{HERE}:Rank").spec_hash(),
    }
    newer = ExternalScorer(
        kind="external", splits=("eval",), batch_size=2, source=f"{HERE}:Rank", version=4, options={}
    )
    assert len({*hashes, make_scorer("mine", newer).spec_hash()}) == 4


def test_an_installed_package_may_offer_scorers(monkeypatch: pytest.MonkeyPatch) -> None:
    offered = EntryPoints([EntryPoint("sharpness", f"{HERE}:lengths", external.ENTRY_POINTS)])
    monkeypatch.setattr(external, "entry_points", lambda group: offered.select(group=group))
    assert scorer("sharpness", weight=1.0).score(BATCH).values.tolist() == [1, 2, 3]
    with pytest.raises(ConfigError, match=r"got 'sharp'; the installed packages offer: sharpness$"):
        scorer("sharp")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            "sharp",
            "scorers.mine.source: must be module:attribute or an entry point of chunk_grpo.scorers, got 'sharp'",
        ),
        (
            "no_such_module:f",
            "scorers.mine.source: cannot import no_such_module:f (No module named 'no_such_module')",
        ),
        (
            f"{HERE}:nothing",
            f"scorers.mine.source: cannot import {HERE}:nothing (module '{HERE}' has no attribute",
        ),
    ],
)
def test_a_source_that_is_not_there_is_named(source: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        scorer(source)
    assert str(caught.value).startswith(said)
