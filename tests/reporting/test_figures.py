"""Panels in rows: no row has an empty place, and letters have one size."""

import pytest

from chunk_grpo.reporting.figures import row_sizes
from chunk_grpo.reporting.page import WIDER


@pytest.mark.parametrize(
    ("count", "columns", "rows"),
    [(1, 2, [1]), (2, 2, [2]), (3, 2, [2, 1]), (5, 2, [2, 2, 1]), (4, 3, [2, 2]), (5, 3, [3, 2]), (7, 3, [3, 2, 2])],
)
def test_rows_are_as_even_as_they_can_be(count: int, columns: int, rows: list[int]) -> None:
    assert row_sizes(count, columns) == rows
    assert all((columns, size) in WIDER for size in rows if size != columns)


def test_letters_of_a_wider_panel_have_the_size_of_the_others() -> None:
    """The page is 72rem - 2 x 2rem = 1088 pixels wide, a gap 1rem, a frame 2 x (1.1rem + 1 pixel)."""
    width = {panels: (1088 - 16 * (panels - 1)) / panels - 2 * (17.6 + 1) for panels in (1, 2, 3)}
    for (full, own), wider in WIDER.items():
        assert wider == pytest.approx(width[own] / width[full], rel=0.005)
