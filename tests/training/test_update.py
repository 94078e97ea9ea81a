"""The two-pass gradient is plain autograd of the clipped chunk objective, whatever the packing."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn

from chunk_grpo.core.chunking import ChunkPlan, equal_plan, listed_plan, single_plan, step_plan
from chunk_grpo.core.flow import time_grid
from chunk_grpo.core.log_prob import gaussian_kl, gaussian_log_prob
from chunk_grpo.core.objective import chunk_objective
from chunk_grpo.core.rollout import rollout_sde, sample_noise
from chunk_grpo.core.sde import diffusion_coefs, sde_transition
from chunk_grpo.families.base import Conditioning
from chunk_grpo.training.update import Objective, StepGrid, UpdateBatch, UpdateStats, accumulate_gradient

B, S, L, D, F = 6, 9, 3, 4, 2
PLANS = {
    "listed": listed_plan((2, 1, 5), S - 1),
    "equal": equal_plan(3, S - 1),
    "single": single_plan(S - 1),
    "step": step_plan(S - 1),
}


class Toy(nn.Module):
    """A velocity network without diffusers: tanh of a linear map of state, noise level and prompt."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        stream = torch.Generator().manual_seed(3)
        draw = [
            torch.randn(*shape, generator=stream, dtype=torch.float64) for shape in ((D, D), (D,), (F, D))
        ]
        self.state, self.time, self.prompt = (nn.Parameter(0.5 * value.to(dtype)) for value in draw)

    def forward(self, x: Tensor, t: Tensor, conditioning: Conditioning) -> Tensor:
        prompt = conditioning.pooled.to(x) @ self.prompt
        return torch.tanh(x @ self.state + t[:, None, None] * self.time + prompt[:, None])

    def moved(self, by: float) -> "Toy":
        """A copy after a random step of the weights."""
        other = Toy(self.state.dtype)
        stream = torch.Generator().manual_seed(11)
        with torch.no_grad():
            for parameter in other.parameters():
                noise = torch.randn(parameter.shape, generator=stream, dtype=torch.float64)
                parameter += by * noise.to(parameter)
        return other


@dataclass(frozen=True)
class Case:
    """A policy that has moved away from the one that sampled, its reference, and what it learns from."""

    policy: Toy
    reference: Toy
    grid: StepGrid
    batch: UpdateBatch


def make_case(plan: ChunkPlan, dtype: torch.dtype = torch.float64, moved: float = 0.02) -> Case:
    old = Toy(dtype)
    times = time_grid(S, 3.0)
    grid = StepGrid(times, diffusion_coefs(times, "flow", 0.7))
    stream = torch.Generator().manual_seed(5)
    pooled = torch.randn(B, F, generator=stream, dtype=torch.float64).to(dtype)
    conditioning = Conditioning(torch.zeros(B, 1, 1, dtype=dtype), pooled)
    start = sample_noise((B, L, D), stream).to(dtype)
    made = rollout_sde(lambda x, t: old(x, t, conditioning), start, grid.times, grid.diffusion_coefs, stream)
    selected = torch.rand(B, plan.num_chunks, generator=stream) < 0.6
    selected[:, 0] |= ~selected.any(dim=1)
    advantages = torch.tensor([1.5, -0.7, 0.4, -1.2, 0.9, -0.3], dtype=dtype)
    batch = UpdateBatch(made.states, conditioning, advantages, made.log_probs, selected)
    return Case(old.moved(moved), old.moved(-moved), grid, batch)


def plain_autograd(case: Case, objective: Objective) -> list[Tensor]:
    """Gradients of minus the objective with every step of every trajectory in one graph."""
    policy, batch, grid = case.policy, case.batch, case.grid
    log_probs, divergences = [], []
    for step in range(S - 1):
        x, t, t_next = batch.states[:, step], float(grid.times[step]), float(grid.times[step + 1])
        coef = float(grid.diffusion_coefs[step])
        level = torch.full((len(x),), t, dtype=x.dtype)
        ours = sde_transition(x, policy(x, level, batch.conditioning), t, t_next, coef)
        with torch.no_grad():
            anchor = sde_transition(x, case.reference(x, level, batch.conditioning), t, t_next, coef)
        log_probs.append(gaussian_log_prob(batch.states[:, step + 1], ours.mean, ours.std))
        divergences.append(gaussian_kl(ours.mean, anchor.mean, ours.std))
    value = chunk_objective(
        torch.stack(log_probs, dim=1),
        batch.old_log_probs,
        batch.advantages,
        objective.clip_range,
        objective.plan,
        torch.stack(divergences, dim=1),
        objective.kl_coef,
        batch.selected,
    )
    return list(torch.autograd.grad(-value, list(policy.parameters())))


def two_pass(
    case: Case, objective: Objective, micro_batch_size: int, on_policy: bool = False
) -> tuple[list[Tensor], UpdateStats]:
    case.policy.zero_grad()
    stats = accumulate_gradient(
        case.policy,
        case.reference,
        case.grid,
        case.batch,
        objective,
        on_policy=on_policy,
        micro_batch_size=micro_batch_size,
        backward=Tensor.backward,
    )
    return [p.grad.clone() for p in case.policy.parameters() if p.grad is not None], stats


def relative_error(found: list[Tensor], wanted: list[Tensor]) -> float:
    pairs = list(zip(found, wanted, strict=True))
    return max(float((a - b).norm() / b.norm()) for a, b in pairs)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("micro_batch_size", [1, 5, 1000])
def test_the_gradient_is_that_of_plain_autograd(plan: str, micro_batch_size: int) -> None:
    case = make_case(PLANS[plan])
    objective = Objective(PLANS[plan], clip_range=2e-3, kl_coef=0.3)
    found, stats = two_pass(case, objective, micro_batch_size)
    assert 0 < stats.clip_fraction < 1  # else clipping is not tested
    assert stats.ratio_min < 1 < stats.ratio_max
    assert stats.kl > 0
    assert relative_error(found, plain_autograd(case, objective)) < 1e-12


def test_clipping_and_the_divergence_change_the_gradient() -> None:
    """So that the agreement above says something about both."""
    plan = PLANS["listed"]
    case = make_case(plan)
    full = plain_autograd(case, Objective(plan, clip_range=2e-3, kl_coef=0.3))
    for other in (Objective(plan, clip_range=0.9, kl_coef=0.3), Objective(plan, clip_range=2e-3)):
        assert relative_error(plain_autograd(case, other), full) > 1e-2


def test_the_order_of_the_trajectories_does_not_matter() -> None:
    plan = PLANS["listed"]
    case, objective = make_case(plan), Objective(plan, clip_range=2e-3, kl_coef=0.3)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    batch = case.batch
    shuffled = UpdateBatch(
        batch.states[order],
        batch.conditioning.rows(order),
        batch.advantages[order],
        batch.old_log_probs[order],
        batch.selected[order],
    )
    found, _ = two_pass(replace(case, batch=shuffled), objective, micro_batch_size=4)
    assert relative_error(found, two_pass(case, objective, micro_batch_size=4)[0]) < 1e-12


@pytest.mark.parametrize("kl_coef", [0.0, 0.3])
def test_the_first_pass_may_be_left_out_on_policy(kl_coef: float) -> None:
    plan = PLANS["listed"]
    case, objective = make_case(plan, moved=0.0), Objective(plan, clip_range=1e-4, kl_coef=kl_coef)
    case = replace(case, reference=case.policy.moved(0.02))
    short, short_stats = two_pass(case, objective, 4, on_policy=True)
    full, full_stats = two_pass(case, objective, 4, on_policy=False)
    assert relative_error(short, full) < 1e-12
    assert (short_stats.ratio_min, short_stats.ratio_max, short_stats.clip_fraction) == (1, 1, 0)
    assert full_stats.ratio_max == pytest.approx(1, abs=1e-12)
    assert short_stats.kl == pytest.approx(full_stats.kl, rel=1e-12)


def test_off_policy_the_first_pass_is_needed() -> None:
    plan = PLANS["listed"]
    case, objective = make_case(plan), Objective(plan, clip_range=2e-3)
    short, _ = two_pass(case, objective, 4, on_policy=True)
    assert relative_error(short, two_pass(case, objective, 4)[0]) > 1e-2


def test_in_float32_the_gradient_is_right_to_rounding() -> None:
    plan = PLANS["listed"]
    objective = Objective(plan, clip_range=0.5, kl_coef=0.3)  # rounding must not decide what is clipped
    exact = plain_autograd(make_case(plan), objective)
    rounded, _ = two_pass(make_case(plan, torch.float32), objective, 4)
    assert rounded[0].dtype == torch.float32
    assert relative_error([value.double() for value in rounded], exact) < 1e-4


def test_statistics_are_of_the_selected_chunks() -> None:
    plan = PLANS["listed"]
    case = make_case(plan)
    _, stats = two_pass(case, Objective(plan, clip_range=2e-3), 4)
    sizes = torch.tensor(plan.sizes)
    assert stats.trained_steps == int((case.batch.selected * sizes).sum())
    assert stats.kl == 0.0


def test_a_divergence_needs_a_reference() -> None:
    plan = PLANS["listed"]
    case = make_case(plan)
    with pytest.raises(ValueError, match=r"kl_coef 0\.1 needs a reference policy"):
        accumulate_gradient(
            case.policy,
            None,
            case.grid,
            case.batch,
            Objective(plan, clip_range=2e-3, kl_coef=0.1),
            on_policy=True,
            micro_batch_size=4,
            backward=Tensor.backward,
        )
