import pytest

from chunk_grpo.core.window import window_steps


def starts(iterations, **settings):
    return [window_steps(iteration, **settings)[0] for iteration in iterations]


def test_mixgrpos_window_by_hand():
    # 25 steps, so 24 that can take noise; size 4, one step on after iterations 25, 50, ...
    settings = {"num_sde_steps": 24, "size": 4, "stride": 1, "every": 25}
    assert window_steps(1, **settings) == (0, 1, 2, 3)
    assert window_steps(25, **settings) == (0, 1, 2, 3)
    assert window_steps(26, **settings) == (1, 2, 3, 4)
    assert window_steps(300, **settings) == (11, 12, 13, 14)
    assert window_steps(525, **settings) == (20, 21, 22, 23)


def test_after_the_last_position_the_window_returns_to_the_start():
    settings = {"num_sde_steps": 6, "size": 4, "stride": 1, "every": 2}
    assert starts(range(1, 15), **settings) == [0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2, 2, 0, 0]


def test_a_move_that_would_leave_the_grid_is_cut_short():
    settings = {"num_sde_steps": 8, "size": 3, "stride": 2, "every": 1}
    assert starts(range(1, 7), **settings) == [0, 2, 4, 5, 0, 2]


def test_a_window_of_the_whole_grid_stays():
    for iteration in (1, 2, 30):
        assert window_steps(iteration, num_sde_steps=5, size=5, stride=2, every=1) == (0, 1, 2, 3, 4)


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
