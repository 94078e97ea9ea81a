"""Appendix A of the paper, checked by counting instead of by algebra."""

import math

import pytest
import torch

from chunk_grpo.core.assignment import ChunkAssignment
from chunk_grpo.core.chunking import single_plan, step_plan
from chunk_grpo.core.objective import Bounds, gradient_coefficients
from tests.core.conftest import terms_of


def distances(num_steps, wrong):
    """Squared distances of Eq. (36) and (37), from the coefficients of eps_t of Eq. (32), (33) and (35)."""
    signs = [-1.0] * wrong + [1.0] * (num_steps - wrong)
    truth = signs + [-sign for sign in signs]
    grpo = [1.0] * num_steps + [-1.0] * num_steps
    to_grpo = math.fsum((a - b) ** 2 for a, b in zip(truth, grpo, strict=True))
    to_chunk = math.fsum((a - b / num_steps) ** 2 for a, b in zip(truth, grpo, strict=True))
    return to_grpo, to_chunk


@pytest.mark.parametrize(("num_steps", "wrong"), [(1, 1), (5, 2), (17, 3)])
def test_eq_36_and_37(num_steps, wrong):
    to_grpo, to_chunk = distances(num_steps, wrong)
    assert to_grpo == pytest.approx(8 * wrong, abs=1e-12)
    assert to_chunk == pytest.approx(2 * num_steps - 4 + (8 * wrong + 2) / num_steps, abs=1e-12)


def test_eq_38_holds_exactly_up_to_4m_plus_1_steps():
    for num_steps in range(1, 60):
        for wrong in range(1, num_steps + 1):
            to_grpo, to_chunk = distances(num_steps, wrong)
            assert (to_grpo - to_chunk >= -1e-9) == (num_steps <= 4 * wrong + 1)


def test_the_printed_bound_of_eq_40_is_too_narrow():
    to_grpo, to_chunk = distances(num_steps=9, wrong=2)  # printed: T <= 2m + 2 = 6
    assert to_grpo >= to_chunk


def test_with_eq_5s_own_1_over_t_the_two_objectives_agree_to_first_order():
    lp = torch.zeros(2, 16, dtype=torch.float64)
    advantage = torch.tensor([1.0, -1.0], dtype=torch.float64)
    by_step, single = (
        gradient_coefficients(lp, terms_of(lp, advantage, ChunkAssignment.shared(plan, 2)), Bounds(0.1))[0]
        for plan in (step_plan(16), single_plan(16))
    )
    torch.testing.assert_close(single, by_step, rtol=0, atol=1e-16)
