from collections import Counter

import pytest

from chunk_grpo.core.window import drawn_window_steps, window_steps
from chunk_grpo.seeding import generator


def test_mixgrpos_window_by_hand():
    # 25 steps, so 24 that can take noise; size 4, one step on after iterations 25, 50, ...
    settings = {"num_sde_steps": 24, "size": 4, "stride": 1, "every": 25}
    starts = {1: 0, 25: 0, 26: 1, 300: 11, 525: 20}
    for iteration, start in starts.items():
        assert window_steps(iteration, **settings) == tuple(range(start, start + 4))


@pytest.mark.parametrize(
    ("num_sde_steps", "size", "stride", "every", "starts"),
    [
        (6, 4, 1, 2, [0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2, 2, 0, 0]),  # returns to the start after the last position
        (8, 3, 2, 1, [0, 2, 4, 5, 0, 2]),  # a move that would leave the grid is cut short
        (5, 5, 2, 1, [0] * 30),  # the whole grid stays
    ],
)
def test_positions_by_hand(num_sde_steps, size, stride, every, starts):
    windows = [window_steps(i, num_sde_steps, size, stride, every) for i in range(1, len(starts) + 1)]
    assert [window[0] for window in windows] == starts


SIZES = [(1, 1, 1), (5, 1, 1), (5, 3, 2), (5, 4, 4), (16, 4, 1), (16, 4, 3), (16, 4, 4), (16, 16, 16)]


@pytest.mark.parametrize(("num_sde_steps", "size", "stride"), SIZES)
def test_windows_have_their_size_stay_inside_and_cover_every_step(num_sde_steps, size, stride):
    windows = [window_steps(i, num_sde_steps, size, stride, every=1) for i in range(1, num_sde_steps + 1)]
    assert all(window == tuple(range(window[0], window[0] + size)) for window in windows)
    assert {step for window in windows for step in window} == set(range(num_sde_steps))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"iteration": 0}, "iteration must be at least 1, got 0"),
        ({"size": 0}, "size must be from 1 to the number of noisy steps 16, got 0"),
        ({"size": 17}, "size must be from 1 to the number of noisy steps 16, got 17"),
        ({"stride": 0}, "stride must be from 1 to the window's size 4, got 0"),
        ({"stride": 5}, "stride must be from 1 to the window's size 4, got 5"),
        ({"every": 0}, "every must be at least 1, got 0"),
    ],
)
def test_window_refuses(changed, message):
    settings = {"iteration": 1, "num_sde_steps": 16, "size": 4, "stride": 1, "every": 25}
    with pytest.raises(ValueError, match=message):
        window_steps(**(settings | changed))


def test_a_drawn_window_begins_at_each_of_its_starts_equally_often():
    """1,000 iterations and 5 starts: 200 of each, with a standard deviation of sqrt(1000 * 0.2 * 0.8) = 12.6."""
    starts = (0, 1, 2, 4, 7)
    windows = [drawn_window_steps(starts, 2, generator("rollout", 0, i, "window")) for i in range(1, 1001)]
    assert all(window == (window[0], window[0] + 1) for window in windows)
    counts = Counter(window[0] for window in windows)
    assert set(counts) == set(starts)
    assert all(abs(count - 200) < 4 * 12.6 for count in counts.values())


def test_a_drawn_window_needs_a_place_and_a_size():
    for starts, size in (((), 2), ((0,), 0)):
        with pytest.raises(ValueError, match="a window needs starts and a size of at least 1"):
            drawn_window_steps(starts, size, generator("any"))
