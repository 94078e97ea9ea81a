"""The command from its options to its table; equal scores are a condition of comparing speeds."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.hpsv3_package import hpsv3_package
from benchmarks.scorers import GROUP, NOT_MEASURED, Contest, Times, check_same, main, make_batch, measured
from chunk_grpo.errors import DataError
from tests.fake_python import fake_python


def test_the_command_measures_and_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """Each round compares PickScore with plain transformers: the command ends with an error if they differ."""
    main(["--rounds", "1", "--images", "2", "--side", "64", "--markdown"])
    printed = capsys.readouterr().out
    rows = {
        line.split(" | ")[0].strip("| "): line.strip("| ").split(" | ")[1:]
        for line in printed.splitlines()
        if line.startswith("| ")
    }
    pickscore, hpsv3 = rows["PickScore, 1 image a prompt"], rows[f"HPSv3, {GROUP} images a prompt"]
    assert all(float(cell.split()[0].rstrip("%")) > 0 for cell in pickscore)
    original, ours, ratio = (float(cell.split()[0]) for cell in pickscore[:3])
    assert ratio == pytest.approx(ours / original, abs=0.02)
    assert [hpsv3[0], hpsv3[2]] == [NOT_MEASURED, NOT_MEASURED]
    assert float(hpsv3[1].split()[0]) > 0
    assert "width=128, layers=12" in printed


def test_a_row_of_the_table_by_hand() -> None:
    """Ten images. Ratios of the rounds are 2, 4 and 3; 2 of 8 seconds, and 0.2 of 0.8 an image, are preprocessing."""
    times = Times(10, ours=[2, 1, 4], original=[4, 4, 12], preprocessing=[2, 1, 3], network=[6, 6, 6])
    assert times.cells() == [
        "2.50 (0.83 to 2.50)",
        "5.00 (2.50 to 10.00)",
        "3.00 (2.00 to 4.00)",
        "200.0",
        "600.0",
        "25%",
    ]


def test_the_first_round_is_not_counted() -> None:
    calls: list[str] = []

    def ours() -> np.ndarray:
        calls.append("ours")
        return np.ones(2)

    def original() -> tuple[np.ndarray, float]:
        calls.append("original")
        return np.ones(2), 1.0 * len(calls)

    found = measured([Contest("x", ours, original, lambda: (0.5, 0.25))], 2, 3)["x"]
    assert calls == ["ours", "original"] * 4
    assert found.original == [4, 6, 8]
    assert (found.preprocessing, found.network) == ([0.5] * 3, [0.25] * 3)


def test_scores_that_differ_are_an_error() -> None:
    check_same("x", np.array([1.0, 0.0]), np.array([1.00009, 0.000009]))
    for other in ([1.0002, 0.0], [1.0, 0.00002], [1.0]):
        with pytest.raises(DataError, match="x: ours gives"):
            check_same("x", np.array([1.0, 0.0]), np.array(other))


def test_groups_share_a_prompt() -> None:
    assert make_batch(5, 8, 2).prompts[:4] == ["a photo of a red circle, 0"] * 2 + ["a cat, 1"] * 2
    assert len(set(make_batch(9, 8, 1).prompts)) == 9


def test_the_packages_own_seconds_are_taken(tmp_path: Path) -> None:
    """The process stands for the package; its second answer differs from its first."""
    answers = [{"values": [1.5, 2.5], "seconds": [0.25, 0.5]}, {"values": [3.5, 4.5], "seconds": [1, 2]}]
    python = fake_python(
        tmp_path / "python",
        f"import json, sys\nprint('ready', flush=True)\nfor answer in {answers}:\n"
        "    sys.stdin.readline()\n    print(json.dumps(answer), flush=True)",
    )
    files = [tmp_path / "a.png", tmp_path / "b.png"]
    with hpsv3_package(
        python, tmp_path, tmp_path, files, ["a", "b"], dtype="float32", device="cpu"
    ) as package:
        scored = [package.score(), package.score()]
        package._process.wait(timeout=60)
        with pytest.raises(DataError, match="the package hpsv3 ended"):
            package.score()
    assert [each.values.tolist() for each in scored] == [answer["values"] for answer in answers]
    assert [each.seconds for each in scored] == [0.75, 3]
