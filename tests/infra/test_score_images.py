"""`make score`: a folder of images and a file of prompts, scored without a pipeline."""

import csv
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from chunk_grpo.__main__ import call
from chunk_grpo.errors import ConfigError, DataError
from chunk_grpo.scorers.base import ScoreBatch
from infra.score_images import mean_of, read_scorers
from tests.conftest import ROOT
from tests.shapes_scorers import shapes_scorer

SCORERS = """\
scorers:
  bright: {{kind: external, source: "{module}:judge", version: 1, options: {{}}, splits: [eval], batch_size: 2}}
"""

CODE = '''
import json
from pathlib import Path

from chunk_grpo.errors import RefusedError


def judge(images, prompts, metadata):
    """The red of the first pixel; notes each call, and does what the file `do` says."""
    with Path("calls").open("a") as stream:
        stream.write(json.dumps([list(images.shape), list(prompts), list(metadata)]) + "\\n")
    what = Path("do").read_text() if Path("do").exists() else ""
    if what == "fail" and len(Path("calls").read_text().splitlines()) == 2:
        raise KeyError("a bug")
    values = list(images[:, 0, 0, 0].astype(float))
    return [RefusedError("black") if what == "refuse" and value == 0 else value for value in values]


def more_red(images, prompts, metadata, sources):
    return images[:, 0, 0, 0].astype(float) - sources[:, 0, 0, 0]
'''


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a module of a scorer, whose name no other test has."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    module = f"judged_{tmp_path.name}"
    Path(f"{module}.py").write_text(CODE)
    Path("own.yaml").write_text(SCORERS.format(module=module))
    return tmp_path


def images(reds: dict[str, int], side: int = 8) -> None:
    """Images in the folder `made`, by name and red."""
    for name, red in reds.items():
        path = Path("made", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((side, side, 3), red, dtype=np.uint8)).save(path)


def score(*more: str, prompts: str | None = "prompts.txt", scorers: str = "own.yaml") -> int:
    return call("score", ["made", *(["--prompts", prompts] if prompts else []), "--scorers", scorers, *more])


def rows(out: str = "scores/made") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(f"{out}/scores.parquet").to_pylist()
    return found


def calls() -> list[Any]:
    path = Path("calls")
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def lines(text: Sequence[str], name: str = "prompts.txt") -> None:
    Path(name).write_text("\n".join(text) + "\n")


def test_images_in_the_order_of_their_numbers(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images({"image-10.png": 30, "image-2.png": 20, "image-1.PNG": 10})
    Path("made/notes.txt").write_text("no image")
    lines(["first", "second", "third"])
    assert score("--out", "there") == 0
    assert [(r["image"], r["prompt"], r["scorer"], r["metric"], r["value"]) for r in rows("there")] == [
        ("image-1.PNG", "first", "bright", "score", 10.0),
        ("image-2.png", "second", "bright", "score", 20.0),
        ("image-10.png", "third", "bright", "score", 30.0),
    ]
    with Path("there/scores.csv").open() as stream:
        table = list(csv.DictReader(stream))
    assert [(row["image"], float(row["value"])) for row in table] == [
        ("image-1.PNG", 10),
        ("image-2.png", 20),
        ("image-10.png", 30),
    ]
    said = capsys.readouterr()
    assert [cell.strip() for cell in said.out.splitlines()[3].split("│")[1:-1]] == [
        *("bright", "3", "20", f"{10 / math.sqrt(3):.6g}", "0")
    ]
    assert "scoring with bright: 3/3" in said.err
    assert not list(Path(".ckpt").iterdir())


def test_edits_are_scored_with_the_pictures_that_they_edit(here: Path) -> None:
    """A picture of another size is resized. An edited picture is scored again."""
    images({"a.png": 30, "b.png": 20})
    Path("own.yaml").write_text(Path("own.yaml").read_text().replace(":judge", ":more_red"))
    Path("table/in").mkdir(parents=True)
    for name, red, side in (("x", 10, 8), ("y", 5, 16)):
        Image.fromarray(np.full((side, side, 3), red, dtype=np.uint8)).save(f"table/in/{name}.png")
    lines(["prompt,image,source", "redder,a.png,in/x.png", "redder,b.png,in/y.png"], "table/edits.csv")
    more = ("--picture-field", "source")
    assert score(*more, prompts="table/edits.csv") == 0
    assert [row["value"] for row in rows()] == [20.0, 15.0]
    Image.fromarray(np.full((8, 8, 3), 29, dtype=np.uint8)).save("table/in/x.png")
    assert score(*more, prompts="table/edits.csv") == 0
    assert [row["value"] for row in rows()] == [1.0, 15.0]


def test_edits_without_their_picture_are_named(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images({"a.png": 30})
    lines(["prompt,image,source", "redder,a.png,x.png"], "edits.csv")
    assert score("--picture-field", "source", prompts="edits.csv") == 3
    assert "edits.csv, line 2: names the picture 'x.png', which is no file in ." in capsys.readouterr().err


def test_a_column_names_the_image_and_the_others_reach_the_scorer(here: Path) -> None:
    images({"b/two.png": 2, "a.png": 1, "unused.png": 9})
    lines(["image,prompt,colour", "b/two.png,a wall,red", "a.png,a door,blue"], "prompts.csv")
    assert score(prompts="prompts.csv") == 0
    assert [(row["image"], row["value"]) for row in rows()] == [("b/two.png", 2.0), ("a.png", 1.0)]
    assert calls() == [[[2, 8, 8, 3], ["a wall", "a door"], [{"colour": "red"}, {"colour": "blue"}]]]


def test_a_folder_with_its_own_prompts(here: Path) -> None:
    """The layout of Hugging Face's image folders."""
    images({"x.png": 5, "y.png": 6})
    entries = [{"file_name": name, "prompt": "same"} for name in ("y.png", "x.png")]
    lines([json.dumps(entry) for entry in entries], "made/metadata.jsonl")
    assert score(prompts=None) == 0
    assert [row["value"] for row in rows()] == [6.0, 5.0]


def test_images_of_several_sizes_are_batches_of_their_own(here: Path) -> None:
    images({"a.png": 1, "c.png": 3})
    images({"b.png": 2}, side=16)
    lines(["one", "two", "three"])
    assert score() == 0
    assert [call[0] for call in calls()] == [[2, 8, 8, 3], [1, 16, 16, 3]]
    assert [row["value"] for row in rows()] == [1.0, 2.0, 3.0]


def test_a_run_that_failed_resumes(here: Path) -> None:
    images({f"{number}.png": number for number in range(5)})
    lines([f"prompt {number}" for number in range(5)])
    Path("do").write_text("fail")
    assert score() == DataError.exit_code
    assert len(calls()) == 2 and not Path("scores").exists()
    Path("do").unlink()
    assert score() == 0
    assert [call[1] for call in calls()[2:]] == [["prompt 2", "prompt 3"], ["prompt 4"]]
    assert [row["value"] for row in rows()] == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_a_refused_image_has_its_reason(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images({"0.png": 0, "1.png": 1})
    lines(["one", "two"])
    Path("do").write_text("refuse")
    assert score() == 0
    assert [(row["value"], row["refusal"]) for row in rows()] == [(None, "black"), (1.0, None)]
    cells = [cell.strip() for cell in capsys.readouterr().out.splitlines()[3].split("│")[1:-1]]
    assert cells == ["bright", "1", "1", "", "1"]  # one prompt: no standard error


def test_the_values_are_those_of_the_scorer(here: Path) -> None:
    images({"0.png": 40, "1.png": 200})
    lines(["a red circle", "a blue square"])
    assert score("--only", "shapes-vivid", scorers="shapes") == 0
    pictures = np.stack([np.asarray(Image.open(f"made/{number}.png")) for number in range(2)])
    batch = ScoreBatch(pictures, ["a red circle", "a blue square"], [{}, {}], [0, 1])
    assert [row["value"] for row in rows()] == list(shapes_scorer("shapes-vivid").score(batch).values)


@pytest.mark.parametrize(
    ("prompts", "code", "message"),
    [
        (["one"], 3, "made: must hold an image for each of the 1 prompts of prompts.csv, got 2 images"),
        (["image,prompt", "c.png,one"], 3, "must name images in made, got 1 that do not exist: c.png"),
        (["image,prompt", "a.png,one", "a.png,two"], 3, "must name each image once, got several lines for a.png"),
        (["image,prompt", ",one"], 3, "prompts.csv, line 2: 'image' must be the path of an image"),
        (["image,file_name,prompt", "a.png,a.png,one"], 3, "must have one of the columns image, file_name, got"),
        (["image,prompt", "notes.txt,one"], 3, "made/notes.txt: must be a PNG, JPEG, WEBP, BMP, TIFF file"),
        (["image,text", "a.png,one"], 3, "needs one field 'prompt' with the prompt"),
    ],
)  # fmt: skip
def test_file_problems_are_reported_before_scoring(
    prompts: list[str], code: int, message: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images({"a.png": 1, "b.png": 2})
    Path("made/notes.txt").write_text("no image")
    lines(["prompt", *prompts] if len(prompts) == 1 else prompts, "prompts.csv")
    assert score(prompts="prompts.csv") == code
    assert message in " ".join(capsys.readouterr().err.split())
    assert not calls() and not Path("scores").exists()


def test_a_folder_that_is_not_there(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert score(prompts=None) == 3
    assert "made: must be a folder with images, got none" in capsys.readouterr().err
    Path("made").mkdir()
    assert score(prompts=None) == 3
    assert "made/metadata.jsonl: does not exist; name the file of the prompts" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rewards: {a: 1.0}\n", "own.yaml: scorers: required"),
        ("scorers: {a: {kind: clip}}\n", "scorers.a.model: required"),
        ("executors: {a: {kind: in-process, device: null}}\n", "executors.a: must be a name in scorers, got 'a'"),
    ],
)  # fmt: skip
def test_wrong_scorers(text: str, message: str, here: Path) -> None:
    sections = Path("own.yaml").read_text() if text.startswith("executors") else ""
    Path("own.yaml").write_text(sections + text)
    with pytest.raises(ConfigError) as error:
        read_scorers("own.yaml")
    assert message in " ".join(str(error.value).split())


@pytest.mark.parametrize("file", sorted((ROOT / "conf" / "scorers").glob("*.yaml")), ids=lambda file: file.stem)
def test_every_file_of_scorers_can_be_named(file: Path) -> None:
    assert read_scorers(file.stem).scorers


def test_scorers_by_name() -> None:
    """Files of conf/scorers/, whose `defaults` are read too; also by their path, and a whole params.yaml."""
    paper = read_scorers("paper")
    assert list(paper.scorers) == ["hpsv3", "imagereward", "pickscore"]
    assert read_scorers(str(ROOT / "conf" / "scorers" / "paper.yaml")) == paper
    assert "shapes-exact" in read_scorers(str(ROOT / "params.yaml")).scorers
    with pytest.raises(ConfigError, match=r"^--scorers: must be a YAML file or one of .*\bpaper, .* got 'papers'$"):
        read_scorers("papers")


def test_an_unknown_scorer_of_a_file(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert score("--only", "dark") == 2
    assert "--only: must be names of bright, got 'dark'" in capsys.readouterr().err


def test_the_images_of_a_groupwise_scorer_have_one_size(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = f"judged_{here.name}"
    Path(f"{module}.py").write_text(
        "class Best:\n    groupwise = True\n    def score(self, images, prompts, metadata, groups):\n"
        "        return [float(groups.count(group)) for group in groups]\n"
    )
    Path("own.yaml").write_text(Path("own.yaml").read_text().replace(":judge", ":Best"))
    images({"a.png": 1, "b.png": 2, "c.png": 3})
    lines(["same", "other", "same"])
    assert score() == 0
    assert [row["value"] for row in rows()] == [2.0, 1.0, 2.0]
    images({"c.png": 3}, side=16)
    assert score() == 3
    assert "must have one size, got (8, 8) of a.png and (16, 16) of c.png" in " ".join(capsys.readouterr().err.split())


def test_the_standard_error_counts_prompts() -> None:
    """Sums of deviations -2, 1, 1 of three prompts: sqrt(3/2 * 6) / 4."""
    assert mean_of([1.0, 1.0, 3.0, 3.0], ["a", "a", "b", "c"]) == (2.0, math.sqrt(1.5 * 6) / 4)
    _, error = mean_of([1.0, 2.0, 6.0], ["a", "b", "c"])
    assert error == pytest.approx(np.std([1, 2, 6], ddof=1) / math.sqrt(3))
    assert math.isnan(mean_of([1.0, 2.0], ["a", "a"])[1])
    assert all(map(math.isnan, mean_of([], [])))


@pytest.mark.parametrize("name", ["../made2/a.png", "../made/own.png", "/etc/hostname", "link.png"])
def test_an_image_outside_the_folder_is_refused(name: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images({"a.png": 1})
    (here / "made2").mkdir()
    (here / "made/a.png").rename(here / "made2/a.png")
    (here / "made/link.png").symlink_to(here / "made2/a.png")
    Path("prompts.jsonl").write_text(json.dumps({"image": name, "prompt": "a sign"}) + "\n")
    assert score(prompts="prompts.jsonl") == 3
    assert f"prompts.jsonl: must name images inside made, got {name!r}" in capsys.readouterr().err
    assert calls() == []


@pytest.mark.parametrize("name", ["a\0.png", "x" * 300, "loop", "\ud800.png", "pipe.png", "folder.png"])
def test_image_name_must_be_a_regular_file(name: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images({"a.png": 1})
    Path("made/loop").symlink_to("loop")
    os.mkfifo("made/pipe.png")
    Path("made/folder.png").mkdir()
    Path("prompts.jsonl").write_text(json.dumps({"image": name, "prompt": "a sign"}) + "\n")
    assert score(prompts="prompts.jsonl") == 3
    assert "prompts.jsonl: must name images" in capsys.readouterr().err


@pytest.mark.parametrize("scorers", ["", "own.yaml"])
def test_missing_folder_is_reported_first(scorers: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("score", ["", "--scorers", scorers]) == 2
    assert capsys.readouterr().err.startswith("error: the folder of the images must have a name")


def test_unscored_files_are_listed_in_one_line(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images({"1.png": 1, "2.png": 2, "sub/3.png": 3})
    Path("made/notes.txt").write_text("no image")
    lines(["one", "two"])
    assert score() == 0
    assert "made: not scored, since no prompt names it or it is no image: notes.txt, sub\n" in capsys.readouterr().err


def test_a_surplus_image_is_named(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images({"image-1.png": 1, "image-10.png": 2, "grid.png": 3})
    lines(["one", "two"])
    assert score() == 3
    assert "got 3 images, of which these have names of another form: grid.png;" in capsys.readouterr().err


def test_a_link_that_stays_in_the_folder_is_read(here: Path) -> None:
    images({"a.png": 7})
    Path("made/link.png").symlink_to("a.png")
    Path("prompts.jsonl").write_text(json.dumps({"image": "link.png", "prompt": "a sign"}) + "\n")
    assert score(prompts="prompts.jsonl") == 0
    assert [row["value"] for row in rows()] == [7.0]


def test_metadata_with_a_byte_order_mark_and_other_line_ends(here: Path) -> None:
    images({"a.png": 7})
    line = json.dumps({"file_name": "a.png", "prompt": "one\u2028two\x85three"}, ensure_ascii=False)
    Path("made/metadata.jsonl").write_text(f"\ufeff{line}\n", encoding="utf-8")
    assert score(prompts=None) == 0
    assert [row["prompt"] for row in rows()] == ["one\u2028two\x85three"]


def test_a_narrow_picture_is_refused_and_the_others_are_scored(here: Path) -> None:
    images({"1.png": 7, "3.png": 9})
    Image.new("RGB", (512, 8)).save("made/2.png")
    Path("prompts.txt").write_text("one\ntwo\nthree\n")
    Path("vivid.yaml").write_text("scorers: {vivid: {kind: shapes-vivid, splits: [eval], batch_size: 2}}")
    assert score(scorers="vivid.yaml") == 0
    reason = "512 x 8 pixels: the longer side must be at most 50 times the shorter one"
    assert [(row["image"], row["value"] is None, row["refusal"]) for row in rows()] == [
        ("1.png", False, None),
        ("2.png", True, reason),
        ("3.png", False, None),
    ]


def test_a_picture_without_certain_pixels_ends_scoring_before_it_begins(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images({"1.png": 7})
    Image.new("RGBA", (8, 8), (255, 0, 0, 0)).save("made/2.png")
    Path("prompts.txt").write_text("one\ntwo\n")
    assert score() == 3
    assert "made/2.png: not a readable picture (must be opaque" in capsys.readouterr().err
    assert calls() == []
