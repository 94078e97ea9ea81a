import math

import pytest
import torch

from chunk_grpo.core.assignment import ChunkAssignment
from chunk_grpo.core.chunking import equal_plan, listed_plan, single_plan, step_plan
from chunk_grpo.core.flow import time_grid
from chunk_grpo.core.objective import Bounds, gradient_coefficients
from chunk_grpo.core.sde import diffusion_coefs, transition_std
from chunk_grpo.core.step_weights import chunk_size_weights, interval_weights, noise_weights
from tests.core.conftest import double, draw, terms_of

PLAN = listed_plan([2, 3, 4, 7], 16)


def flow_stds(times, eta):
    """Standard deviations of the Flow-SDE's noisy steps, for a grid."""
    coefs = diffusion_coefs(times, "flow", eta)
    return torch.stack([transition_std(*step) for step in zip(times[:-2], times[1:-1], coefs, strict=True)])


def test_noise_weights_by_hand():
    assert noise_weights(torch.tensor([3.0, 2.0, 1.0])).tolist() == pytest.approx([1.5, 1.0, 0.5], abs=1e-12)


def test_noise_weights_are_the_released_constants_times_the_noise():
    # SD3.5 with eta 0.7 multiplies by 2.25, FLUX at 1024x1024 with eta 0.9 by 1.73; both T = 10.
    smallest = 0.003 / 1.002  # diffusers' grid for SD3.5 ends at 0.001, shifted, and is shifted once more
    even = torch.linspace(1, smallest, 10, dtype=torch.float64)
    sd3 = flow_stds(torch.cat([3 * even / (1 + 2 * even), torch.zeros(1)]), 0.7)
    flux = flow_stds(time_grid(10, math.exp(1.15)), 0.9)
    for stds, constant in [(sd3, 2.25), (flux, 1.73)]:
        assert (noise_weights(stds) / stds).tolist() == pytest.approx([constant] * 9, abs=0.005)


@pytest.mark.parametrize("stds", [[], [[1.0]], [1.0, 0.0], [1.0, math.nan]])
def test_bad_stds_are_refused(stds):
    with pytest.raises(ValueError, match=r"transition_stds must be \[N\] positive numbers.*got"):
        noise_weights(torch.tensor(stds))


def test_interval_weights_by_hand():
    assert interval_weights(torch.tensor([0.5, 0.25, 0.25])).tolist() == pytest.approx([0.6, 1.2, 1.2], abs=1e-12)


@pytest.mark.parametrize("widths", [[], [[1.0]], [1.0, 0.0], [1.0, math.nan], [-1.0]])
def test_bad_widths_are_refused(widths):
    with pytest.raises(ValueError, match=r"widths must be \[N\] positive numbers.*got"):
        interval_weights(torch.tensor(widths))


def test_weights_of_selected_chunks_by_hand():
    """Chunks of 2, 3, 4, 7 steps; the first row trains the first two: 5 steps in 2 chunks."""
    selected = torch.tensor([[True, True, False, False], [False, False, False, True]])
    weights = chunk_size_weights(ChunkAssignment.shared(PLAN, 2), selected)
    assert weights[0].tolist() == pytest.approx([5 / 4] * 2 + [5 / 6] * 3 + [0.0] * 11)
    assert weights[1].tolist() == [0.0] * 9 + [1.0] * 7


def test_trajectories_of_their_own_chunks_are_weighed_by_them():
    chunks = ChunkAssignment(torch.tensor([[0, 0, 1, -1], [0, 1, 2, 2]]))
    selected = torch.tensor([[True, True, False], [True, False, True]])
    assert chunk_size_weights(chunks, selected).tolist() == [[0.75, 0.75, 1.5, 0.0], [1.5, 0.0, 0.75, 0.75]]


def weights_of(plan, batch=1):
    """Weights of all chunks of one plan."""
    chunks = ChunkAssignment.shared(plan, batch)
    return chunk_size_weights(chunks, chunks.exists)


def test_chunk_size_weights_of_the_papers_plan_by_hand():
    # 16 / (4 * cs): 2.00, 1.33, 1.00 and 0.57
    expected = [2.0] * 2 + [4 / 3] * 3 + [1.0] * 4 + [4 / 7] * 7
    assert weights_of(PLAN)[0].tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("plan", [PLAN, equal_plan(5, 16), single_plan(16)])
def test_on_policy_the_weighted_step_gradient_is_the_chunk_gradient(plan):
    old, advantage = draw(3, 16), double(1.5, -0.5, 0.2)
    steps, chunks = (ChunkAssignment.shared(each, 3) for each in (step_plan(16), plan))
    by_step, _ = gradient_coefficients(old, terms_of(old, advantage, steps, weights=weights_of(plan, 3)), Bounds(0.9))
    by_chunk, _ = gradient_coefficients(old, terms_of(old, advantage, chunks), Bounds(0.9))
    torch.testing.assert_close(by_step, by_chunk, rtol=1e-14, atol=0)
