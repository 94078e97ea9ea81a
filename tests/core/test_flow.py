import pytest
import torch

from chunk_grpo.core.flow import flow_matching_loss, interpolate, ode_step, target_velocity, time_grid


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64).reshape(len(values), 1, 1)


def test_time_grid_by_hand():
    # 3t / (1 + 2t) at t = 1, .75, .5, .25, 0; without shift the grid is uniform
    assert time_grid(4, shift=3.0).tolist() == pytest.approx([1.0, 0.9, 0.75, 0.5, 0.0], abs=1e-15)
    assert time_grid(5).tolist() == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2, 0.0], abs=1e-15)


def test_model_time_is_not_floored():
    # Released code floors 1000 t: the second grid value 48/49 would become .979. The ends are exact.
    grid = time_grid(17, shift=3.0)
    assert grid[1].item() == pytest.approx(48 / 49, abs=1e-15)
    assert (grid.dtype, grid[0].item(), grid[-1].item()) == (torch.float64, 1.0, 0.0)


def test_interpolate_by_hand():
    assert interpolate(tensor(2.0), tensor(10.0), 0.25).item() == 4.0
    x = interpolate(tensor(2.0, 2.0, 2.0), tensor(10.0, 10.0, 10.0), torch.tensor([0.0, 0.5, 1.0]))
    assert x.flatten().tolist() == [2.0, 6.0, 10.0]


def test_target_velocity_is_the_slope_of_the_path():
    x0, x1 = tensor(2.0), tensor(10.0)
    slope = (interpolate(x0, x1, 0.75) - interpolate(x0, x1, 0.25)) / 0.5
    assert target_velocity(x0, x1).item() == slope.item() == 8.0


def test_flow_matching_loss_is_the_mean_square_by_hand():
    # errors 1 - (3 - 2) = 0 and 6 - (5 - 1) = 2: mean of 0 and 4
    velocity = torch.tensor([[1.0, 6.0]])
    assert flow_matching_loss(velocity, torch.tensor([[2.0, 1.0]]), torch.tensor([[3.0, 5.0]])).item() == 2.0


def test_ode_step_by_hand():
    assert ode_step(tensor(5.0), tensor(2.0), 0.9, 0.75).item() == pytest.approx(4.7, abs=1e-15)


def test_ode_step_recovers_the_path_exactly():
    x0, x1 = tensor(2.0, -1.0), tensor(10.0, 3.0)
    x = ode_step(interpolate(x0, x1, 0.8), target_velocity(x0, x1), 0.8, 0.3)
    torch.testing.assert_close(x, interpolate(x0, x1, 0.3), rtol=0, atol=1e-14)


def test_half_precision_states_are_stepped_in_float32():
    x = torch.tensor([[1.0]], dtype=torch.bfloat16)
    stepped = ode_step(x, x, 1.0, 0.999)
    assert stepped.dtype == torch.float32
    assert stepped.item() == pytest.approx(0.999, abs=1e-6)  # bfloat16 would round it to 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: time_grid(1, 3.0), "num_steps must be at least 2.*got 1"),
        (lambda: time_grid(17, 0.0), "shift must be a positive number, got 0"),
        (lambda: ode_step(tensor(1.0, 2.0), tensor(1.0), 0.5, 0.25), r"shape of x \(2, 1, 1\), got \(1, 1, 1\)"),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
