"""The two-pass gradient is plain autograd of the clipped objective, whatever the method and the packing."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import chunk_grpo.core.objective as objective_module
from chunk_grpo.config import ResolvedVariant
from chunk_grpo.core.assignment import ChunkAssignment, TrainedChunks
from chunk_grpo.core.chunking import ChunkPlan, equal_plan, listed_plan, single_plan, step_plan
from chunk_grpo.core.flow import time_grid
from chunk_grpo.core.log_prob import gaussian_kl, gaussian_log_prob
from chunk_grpo.core.objective import Terms, chunk_objective
from chunk_grpo.core.ratios import guard_log_ratio
from chunk_grpo.core.rollout import rollout_sde, sample_noise
from chunk_grpo.core.sde import CPS, diffusion_coefs
from chunk_grpo.families.base import Conditioning
from chunk_grpo.training.method import Method, StepGrid
from chunk_grpo.training.processes import Processes
from chunk_grpo.training.update import Policies, Update, UpdateBatch, UpdateStats

B, S, L, D, F = 6, 9, 3, 4, 2
TIMES = time_grid(S, 3.0)
FLOW = StepGrid(TIMES, diffusion_coefs(TIMES, "flow", 0.7))
MIXING = StepGrid(TIMES, torch.full((S - 1,), 0.5, dtype=torch.float64), CPS)
LISTED, STEPS = listed_plan((2, 1, 5), S - 1), step_plan(S - 1)
OWN_PLANS = [LISTED, STEPS, single_plan(S - 1), ChunkPlan((3, 5)), LISTED, equal_plan(3, S - 1)]
ASSIGNMENTS = {
    "listed": ChunkAssignment.shared(LISTED, B),
    "equal": ChunkAssignment.shared(equal_plan(3, S - 1), B),
    "single": ChunkAssignment.shared(single_plan(S - 1), B),
    "step": ChunkAssignment.shared(STEPS, B),
    "of each trajectory": ChunkAssignment.per_row(OWN_PLANS),
    "window": ChunkAssignment(torch.tensor([[-1, -1, 0, 1, 2, -1, -1, -1]] * B)),
}


def method_with(grid: StepGrid = FLOW, advantage_clip: float = 5.0, **settings: Any) -> Method:
    """A method with a clip range of 2e-3 and no KL term, unless the settings say otherwise."""
    train = {"fraction": 1.0, "clip_range": 2e-3, "kl_coef": 0.0, "learning_rate": 1e-3}
    values: dict[str, Any] = {**train, "sde": "flow", "eta": 0.7, **settings}
    variant = ResolvedVariant(objective="chunk", plan="listed", **values)
    return Method(variant, grid, LISTED, torch.ones(LISTED.num_chunks), advantage_clip)


def changed(method: Method, **settings: Any) -> Method:
    """The method with other settings of its variant."""
    return replace(method, variant=method.variant.model_copy(update=settings))


WITH_KL = method_with(kl_coef=0.3)


class Toy(nn.Module):
    """A velocity network without diffusers: tanh of a linear map of state, noise level and prompt."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        stream = torch.Generator().manual_seed(3)
        draw = [torch.randn(*shape, generator=stream, dtype=torch.float64) for shape in ((D, D), (D,), (F, D))]
        self.state, self.time, self.prompt = (nn.Parameter(0.5 * value.to(dtype)) for value in draw)

    def forward(self, x: Tensor, t: Tensor, conditioning: Conditioning) -> Tensor:
        prompt = conditioning["pooled"].to(x) @ self.prompt
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


def make_case(
    assignment: ChunkAssignment,
    dtype: torch.dtype = torch.float64,
    moved: float = 0.02,
    grid: StepGrid = FLOW,
    weights: bool = False,
    advantage_per_chunk: bool = False,
) -> Case:
    old = Toy(dtype)
    stream = torch.Generator().manual_seed(5)
    pooled = torch.randn(B, F, generator=stream, dtype=torch.float64).to(dtype)
    conditioning = Conditioning({"prompt_embeds": torch.zeros(B, 1, 1, dtype=dtype), "pooled": pooled})
    start = sample_noise((B, L, D), stream).to(dtype)
    made = rollout_sde(
        lambda x, t: old(x, t, conditioning),
        start,
        grid.times,
        grid.noise,
        stream,
        sampler=grid.sampler,
        keep_means=True,
    )
    exists = assignment.exists
    selected = (torch.rand(exists.shape, generator=stream) < 0.6) & exists
    selected[:, 0] |= ~selected.any(dim=1)
    advantages = torch.tensor([1.5, -0.7, 0.4, -1.2, 0.9, -0.3], dtype=dtype)
    if advantage_per_chunk:
        advantages = advantages.unsqueeze(1) * torch.randn(exists.shape, generator=stream).to(dtype)
    factors, of_kl = (
        torch.rand(exists.shape, generator=stream, dtype=torch.float64) if weights else None for _ in range(2)
    )
    batch = UpdateBatch(
        made.states,
        torch.zeros(B, dtype=torch.int64),
        conditioning,
        advantages,
        made.log_probs,
        made.means,
        TrainedChunks(assignment, selected, factors, of_kl),
    )
    return Case(old.moved(moved), old.moved(-moved), grid, batch)


def plain_autograd(case: Case, method: Method) -> list[Tensor]:
    """Gradients of minus the objective with every step of every trajectory in one graph."""
    policy, batch, grid = case.policy, case.batch, case.grid
    log_probs, drifts, divergences = [], [], []
    for step in range(S - 1):
        x, t, t_next = batch.states[:, step], float(grid.times[step]), float(grid.times[step + 1])
        noise = float(grid.noise[step])
        level = torch.full((len(x),), t, dtype=x.dtype)
        ours = grid.sampler.transition(x, policy(x, level, batch.conditioning), t, t_next, noise)
        with torch.no_grad():
            anchor = grid.sampler.transition(x, case.reference(x, level, batch.conditioning), t, t_next, noise)
        log_probs.append(gaussian_log_prob(batch.states[:, step + 1], ours.mean, ours.std))
        divergences.append(gaussian_kl(ours.mean, anchor.mean, ours.std))
        assert batch.old_means is not None
        drifts.append(gaussian_kl(ours.mean, batch.old_means[:, step], ours.std))
    new, old = torch.stack(log_probs, dim=1), batch.old_log_probs
    if method.variant.ratio_norm == "guard":
        new = guard_log_ratio(new, old, torch.stack(drifts, dim=1), grid.transition_stds())
        old = torch.zeros_like(old)
    terms = Terms(old, batch.advantages, batch.chunks, torch.stack(drifts, dim=1))
    value = chunk_objective(new, terms, method.bounds, torch.stack(divergences, dim=1))
    return list(torch.autograd.grad(-value, list(policy.parameters())))


def nothing() -> None:
    """A look at a stop request that nobody made."""


def two_pass(
    case: Case, method: Method, micro_batch_size: int, on_policy: bool = False
) -> tuple[list[Tensor], UpdateStats]:
    case.policy.zero_grad()
    policies, method = Policies(case.policy, case.reference), replace(method, grid=case.grid)
    update = Update(policies, method, case.batch, method.bounds, micro_batch_size)
    stats = update.accumulate_gradient(Processes(), on_policy=on_policy, check=nothing)
    return [p.grad.clone() for p in case.policy.parameters() if p.grad is not None], stats


def relative_error(found: list[Tensor], wanted: list[Tensor]) -> float:
    pairs = list(zip(found, wanted, strict=True))
    return max(float((a - b).norm() / b.norm()) for a, b in pairs)


@pytest.mark.parametrize("name", ASSIGNMENTS)
@pytest.mark.parametrize("micro_batch_size", [1, 5, 1000])
def test_gradient_matches_plain_autograd(name, micro_batch_size):
    case = make_case(ASSIGNMENTS[name])
    found, stats = two_pass(case, WITH_KL, micro_batch_size)
    clipped = stats.clipped.double().mean()
    assert 0 < clipped < 1  # else clipping is not tested
    assert stats.ratios.min() < 1 < stats.ratios.max()
    assert stats.kl_sum > 0
    assert relative_error(found, plain_autograd(case, WITH_KL)) < 1e-12


@pytest.mark.parametrize("name", ["listed", "of each trajectory"])
@pytest.mark.parametrize("ratio_norm", ["none", "guard"])
@pytest.mark.parametrize("trust_region", ["clip", "divergence"])
@pytest.mark.parametrize("grid", [FLOW, MIXING], ids=["sde", "cps"])
def test_gradient_matches_plain_autograd_with_every_option(name, ratio_norm, trust_region, grid):
    """Weights, advantages and clip ranges of each chunk, normalised ratios, both bounds, another sampler."""
    case = make_case(ASSIGNMENTS[name], grid=grid, weights=True, advantage_per_chunk=True)
    ranges = [0.5] * ASSIGNMENTS[name].max_chunks
    ranges[1] = 1e-9
    method = changed(WITH_KL, clip_ranges=tuple(ranges), ratio_norm=ratio_norm, trust_region=trust_region)
    found, stats = two_pass(case, method, 5)
    assert 0 < stats.clipped.double().mean() < 1
    assert relative_error(found, plain_autograd(case, method)) < 1e-12
    for other in (
        changed(method, clip_ranges=None, clip_range=0.5),
        changed(method, ratio_norm="guard" if ratio_norm == "none" else "none"),
    ):
        assert relative_error(plain_autograd(case, other), found) > 1e-4  # each option says something


def test_another_formula_is_another_gradient(monkeypatch):
    """Nothing but the formula is changed, here by leaving out the clipping; the update follows it exactly."""
    case = make_case(ASSIGNMENTS["listed"])
    clipped, _ = two_pass(case, WITH_KL, 5)
    unclipped = lambda ratio, terms, _: ratio * terms.advantage.reshape(len(ratio), -1)  # noqa: E731
    monkeypatch.setitem(objective_module.TERMS, "clip", unclipped)
    found, stats = two_pass(case, WITH_KL, 5)
    assert relative_error(found, plain_autograd(case, WITH_KL)) < 1e-12
    assert relative_error(found, clipped) > 1e-2
    assert not stats.clipped.any()


def test_partial_trajectories_give_the_gradient_of_whole_ones():
    """A branch keeps the two states of its one step; so does a row that is cut to it."""
    case = make_case(ASSIGNMENTS["step"])
    steps = torch.tensor([0, 3, 7, 1, 2, 5])
    chunk = torch.full((B, S - 1), -1)
    chunk[torch.arange(B), steps] = 0
    chunks = TrainedChunks(ChunkAssignment(chunk), torch.ones(B, 1, dtype=torch.bool), None)
    whole = replace(case.batch, chunks=chunks)
    assert whole.old_means is not None
    rows = torch.arange(B)
    cut = replace(
        whole,
        states=torch.stack([whole.states[rows, steps], whole.states[rows, steps + 1]], dim=1),
        first_step=steps,
        old_means=whole.old_means[rows, steps].unsqueeze(1),
    )
    for changes in ({}, {"ratio_norm": "guard"}, {"trust_region": "divergence", "clip_range": 1e-5}):
        method = changed(WITH_KL, **changes)
        of_parts, _ = two_pass(replace(case, batch=cut), method, 4)
        of_whole, _ = two_pass(replace(case, batch=whole), method, 4)
        assert all(torch.equal(a, b) for a, b in zip(of_parts, of_whole, strict=True))


@pytest.mark.parametrize("kl_coef", [0.0, 0.3])
@pytest.mark.parametrize("ratio_norm", ["none", "guard"])
@pytest.mark.parametrize("trust_region", ["clip", "divergence"])
def test_ratios_need_not_be_computed_on_policy(kl_coef, ratio_norm, trust_region):
    case = make_case(ASSIGNMENTS["listed"], moved=0.0)
    method = method_with(clip_range=1e-4, kl_coef=kl_coef, ratio_norm=ratio_norm, trust_region=trust_region)
    case = replace(case, reference=case.policy.moved(0.02))
    short, short_stats = two_pass(case, method, 4, on_policy=True)
    full, full_stats = two_pass(case, method, 4, on_policy=False)
    assert relative_error(short, full) < 1e-12
    assert set(short_stats.ratios.tolist()) == {1.0}
    assert not short_stats.clipped.any()
    assert full_stats.ratios.max() == pytest.approx(1, abs=1e-12)
    assert short_stats.kl_sum == pytest.approx(full_stats.kl_sum, rel=1e-12)
    assert short_stats.log_prob_change.abs().max() < 1e-12


@pytest.mark.parametrize(("micro_batch_size", "divided"), [(1, {2, 5}), (2, {5}), (4, {5}), (5, set()), (99, set())])
def test_only_chunks_larger_than_a_micro_batch_need_two_passes(micro_batch_size, divided):
    case = make_case(ASSIGNMENTS["listed"])
    counts = {True: 0, False: 0}

    def counted(x: Tensor, t: Tensor, conditioning: Conditioning) -> Tensor:
        counts[torch.is_grad_enabled()] += len(x)
        return case.policy(x, t, conditioning)

    method = method_with()
    update = Update(Policies(counted), method, case.batch, method.bounds, micro_batch_size)
    stats = update.accumulate_gradient(Processes(), on_policy=False, check=nothing)
    sizes = torch.tensor(LISTED.sizes)[stats.chunk].tolist()
    assert counts[True] == sum(sizes)
    assert counts[False] == sum(size for size in sizes if size in divided)


def of_equal_rewards(case: Case) -> Case:
    """Rows 1, 2 and 5 have an advantage of 0; with one per chunk, row 3 has it in its chunk 0, too."""
    advantages = case.batch.advantages.clone()
    advantages[[1, 2, 5]] = 0
    if advantages.ndim == 2:
        advantages[3, 0] = 0
    return replace(case, batch=replace(case.batch, advantages=advantages))


@pytest.mark.parametrize("name", ["listed", "step", "of each trajectory"])
@pytest.mark.parametrize("on_policy", [True, False])
@pytest.mark.parametrize("micro_batch_size", [1, 3, 5])
@pytest.mark.parametrize(("per_chunk", "trust_region"), [(False, "clip"), (True, "clip"), (True, "divergence")])
def test_chunks_without_an_advantage_are_not_passed(name, on_policy, micro_batch_size, per_chunk, trust_region):
    method = method_with(trust_region=trust_region, clip_range=2e-3 if trust_region == "clip" else 1e-6)
    moved = 0.0 if on_policy else 0.02
    case = of_equal_rewards(make_case(ASSIGNMENTS[name], moved=moved, advantage_per_chunk=per_chunk))
    found, stats = two_pass(case, method, micro_batch_size, on_policy)
    assert relative_error(found, plain_autograd(case, method)) < 1e-12
    chosen = case.batch.chunks.selected
    useful = chosen & (case.batch.advantages.reshape(B, -1).expand(chosen.shape) != 0)
    items, all_items = (int(case.batch.chunks.assignment.to_steps(c.double()).sum()) for c in (useful, chosen))
    assert (len(stats.steps), stats.skipped) == (items, all_items - items)
    assert stats.skipped > 0 and len(stats.ratios) == useful.sum()
    assert len(stats.clipped) == len(stats.chunk) == chosen.sum() and stats.by_step[0].sum() == all_items


def test_items_with_a_kl_term_are_all_passed():
    case = of_equal_rewards(make_case(ASSIGNMENTS["listed"]))
    found, stats = two_pass(case, WITH_KL, 1)
    assert stats.skipped == 0
    assert relative_error(found, plain_autograd(case, WITH_KL)) < 1e-12


def test_a_process_without_any_gradient_adds_0():
    case = make_case(ASSIGNMENTS["listed"])
    case = replace(case, batch=replace(case.batch, advantages=torch.zeros(B)))
    found, stats = two_pass(case, method_with(), 4)
    assert all(not value.any() for value in found) and len(found) == 3
    assert (stats.skipped, len(stats.ratios)) == (0, int(case.batch.chunks.selected.sum()))


def test_in_float32_the_gradient_is_right_to_rounding():
    method = changed(WITH_KL, clip_range=0.5)  # rounding must not decide what is clipped
    exact = plain_autograd(make_case(ASSIGNMENTS["listed"]), method)
    rounded, _ = two_pass(make_case(ASSIGNMENTS["listed"], torch.float32), method, 4)
    assert rounded[0].dtype == torch.float32
    assert relative_error([value.double() for value in rounded], exact) < 1e-4


def test_statistics_are_of_the_selected_chunks():
    case = make_case(ASSIGNMENTS["listed"])
    _, stats = two_pass(case, method_with(), 4)
    selected = case.batch.chunks.selected
    sizes = torch.tensor(LISTED.sizes)
    assert len(stats.steps) == len(stats.log_prob_change) == int((selected * sizes).sum())
    assert stats.steps.bincount(minlength=S - 1).tolist() == (selected.sum(dim=0).repeat_interleave(sizes).tolist())
    assert stats.chunk.bincount(minlength=3).tolist() == selected.sum(dim=0).tolist()
    assert len(stats.ratios) == len(stats.clipped) == int(selected.sum())
    drawn, clipped = (chunk.bincount(minlength=3) for chunk in (stats.chunk, stats.chunk[stats.clipped]))
    assert 0 < clipped.sum() < drawn.sum()
    assert stats.by_step.tolist() == [of.repeat_interleave(sizes).tolist() for of in (drawn, clipped)]
    assert stats.kl_sum == 0.0


def test_old_log_probabilities_can_be_taken_in_the_updates_own_batches():
    """The sampling policy's values replace rounded ones; what is not trained keeps what it had."""
    case = make_case(ASSIGNMENTS["listed"], moved=0.0)
    exact = case.batch.old_log_probs
    noisy = exact + 0.1
    method, batch = method_with(), replace(case.batch, old_log_probs=noisy)
    update = Update(Policies(case.policy), method, batch, method.bounds, 4)
    found = update.reevaluate_old(Processes(), nothing)
    trained = case.batch.chunks.assignment.to_steps(case.batch.chunks.selected.double()) > 0
    assert torch.allclose(found[trained], exact[trained], rtol=0, atol=1e-12)
    assert torch.equal(found[~trained], noisy[~trained])
    stats = update.accumulate_gradient(Processes(), on_policy=False, check=nothing)
    assert stats.ratios.tolist() == pytest.approx([1.0] * len(stats.ratios), abs=1e-12)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kl_coef": 0.1}, r"kl_coef 0\.1 needs a reference policy"),
        ({"ratio_norm": "guard"}, "ratio_norm guard .* needs the means .* roll out with keep_means"),
        ({"trust_region": "divergence"}, "trust_region divergence needs the means"),
    ],
)
def test_missing_objective_inputs_are_refused(settings, message):
    case, method = make_case(ASSIGNMENTS["listed"]), method_with(**settings)
    with pytest.raises(ValueError, match=message):
        Update(Policies(case.policy), method, replace(case.batch, old_means=None), method.bounds, 4)
