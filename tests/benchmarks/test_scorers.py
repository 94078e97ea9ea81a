"""The command from its options to its table; equal scores are a condition of comparing speeds."""

import numpy as np
import pytest

from benchmarks.scorers import GROUP, NOT_MEASURED, Pair, check_same, main
from chunk_grpo.errors import DataError


def test_the_command_measures_and_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """Each round compares PickScore with plain transformers: the command ends with an error if they differ."""
    main(["--rounds", "1", "--images", "2", "--side", "64"])
    lines = [line.strip("|").split("|") for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    rows = {name.strip(): [cell.strip() for cell in cells] for name, *cells in lines}
    original, ours, ratio = (float(cell) for cell in rows["PickScore, 1 image a prompt"][:3])
    assert ratio == pytest.approx(ours / original, abs=0.02)
    hpsv3 = rows[f"HPSv3, {GROUP} images a prompt"]
    assert [hpsv3[0], hpsv3[2]] == [NOT_MEASURED, NOT_MEASURED]
    assert float(hpsv3[1]) > 0


def test_a_row_of_the_table_by_hand() -> None:
    """Ten images; the first round does not count. Ratios of the others are 2, 4 and 3; half a second of 2 is
    preprocessing."""
    pair = Pair("x", lambda: np.ones(2), lambda: np.ones(2), lambda: None)
    for name, seconds in (("ours", [9, 2, 1, 4]), ("original", [9, 4, 4, 12]), ("preprocessing", [9, 0.5, 1, 0.1])):
        pair.seconds[name] += seconds
    assert pair.cells(10) == [
        *("x", "2.50 (0.83 to 2.50)", "5.00 (2.50 to 10.00)", "3.00 (2.00 to 4.00)"),
        *("50.0", "150.0", "25%"),
    ]


def test_scores_that_differ_are_an_error() -> None:
    check_same("x", np.array([1.0, 0.0]), np.array([1.00009, 0.000009]))
    for other in ([1.0002, 0.0], [1.0, 0.00002], [1.0]):
        with pytest.raises(DataError, match="x: ours gives"):
            check_same("x", np.array([1.0, 0.0]), np.array(other))
        with pytest.raises(DataError, match="x: ours gives"):
            Pair("x", lambda: np.array([1.0, 0.0]), lambda o=other: np.array(o), lambda: None).run()
