"""flows/_pool.py: how often a flow run asks about its stage on a pool."""

import pytest

from flows._pool import pause_after


@pytest.mark.parametrize(
    ("elapsed", "pause"), [(0.0, 1.0), (20.0, 1.0), (50.0, 2.5), (100.0, 5.0), (9e4, 5.0)]
)
def test_a_long_stage_is_asked_about_less_often(elapsed: float, pause: float) -> None:
    assert pause_after(elapsed) == pause
