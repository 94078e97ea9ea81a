"""Which chunks an update trains: the draw and its weights are those of each method, whatever the batch."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from chunk_grpo.core.assignment import TrainedChunks
from chunk_grpo.core.chunk_sampling import chunk_weights, inclusion_probabilities, select_chunks
from chunk_grpo.core.chunking import ChunkPlan, listed_plan, step_plan
from chunk_grpo.core.dynamics import profile_drift, relative_l1
from chunk_grpo.core.objective import Bounds, Terms, gradient_coefficients
from chunk_grpo.core.step_weights import noise_weights
from chunk_grpo.seeding import generator
from chunk_grpo.training.chunk_selection import ChunkSelector, DrawContext
from chunk_grpo.training.rollouts import SampledTrajectories

from .conftest import CHUNK_WS, PROFILE, method_of, small_params

B, N = 6, len(PROFILE)
WEIGHTS = chunk_weights(PROFILE, listed_plan((1, 3), N))


def drawn(noisy: torch.Tensor | None = None, seed: int = 0) -> SampledTrajectories:
    stream = torch.Generator().manual_seed(seed)
    states = torch.randn(B, N + 2, 2, 3, generator=stream)
    return SampledTrajectories(
        states=states,
        first_step=torch.zeros(B, dtype=torch.int64),
        noisy=torch.ones(B, N, dtype=torch.bool) if noisy is None else noisy,
        log_probs=torch.zeros(B, N),
        means=None,
        finals=states[:, -1],
    )


def draw(iteration: int = 1, rows: range = range(B), total: int = B) -> DrawContext:
    return DrawContext(seed=3, iteration=iteration, iterations=5, update=1, rows=rows, total=total)


def chunks_of(variant: dict[str, Any]) -> ChunkSelector:
    return ChunkSelector(method_of(small_params(variant)))


def select(
    variant: dict[str, Any], where: DrawContext | None = None, what: SampledTrajectories | None = None
) -> TrainedChunks:
    return chunks_of(variant).select(what or drawn(), where or draw())


def test_weighted_chunks_are_drawn_by_equation_16():
    made = select(CHUNK_WS)
    wanted = select_chunks(WEIGHTS.expand(B, -1), 0.5, generator("chunks", 3, 1, 1))
    assert torch.equal(made.selected, wanted)
    assert made.weights is None
    assert made.assignment.chunk.tolist() == [[0, 1, 1, 1]] * B


def test_draws_differ_between_updates_iterations_and_seeds():
    changes = ({}, {"seed": 4}, {"iteration": 2}, {"update": 0}, {})
    step = {"objective": "step", "plan": "step"}
    made = [select(step, replace(draw(), **each)).selected.flatten().tolist() for each in changes]
    assert made[0] == made[-1]
    assert len({tuple(each) for each in made}) == 4


@pytest.mark.parametrize("plan", ["listed", "step", "adaptive"])
def test_chunk_draw_does_not_depend_on_process_count(plan):
    """The draw of rows 2 to 4 is the same, whether this process has them alone or all six."""
    variant = {"objective": "chunk", "plan": plan}
    whole = select(variant)
    part = drawn()
    rows = slice(2, 4)
    cut = SampledTrajectories(
        part.states[rows], part.first_step[rows], part.noisy[rows], part.log_probs[rows], None, part.finals[rows]
    )
    mine = select(variant, draw(rows=range(2, 4), total=B), cut)
    kept = mine.selected.shape[1]
    assert torch.equal(mine.selected, whole.selected[rows, :kept])
    assert not whole.selected[rows, kept:].any()
    assert torch.equal(mine.assignment.chunk, whole.assignment.chunk[rows])


def test_unbiased_selection_is_weighted_selection_with_importance_weights():
    made, weighted = select({**CHUNK_WS, "selection": "unbiased"}), select(CHUNK_WS)
    assert torch.equal(made.selected, weighted.selected)
    assert made.weights is not None
    # One of two chunks is drawn, so a chunk's chance is its share of the weights, and the factor 1 / (2 share).
    share = WEIGHTS / WEIGHTS.sum()
    assert torch.allclose(made.weights, (1 / (2 * share)).expand(B, -1))
    assert torch.allclose(inclusion_probabilities(WEIGHTS, 1), share)


def test_annealed_selection_begins_weighted_and_ends_uniform():
    annealed = {**CHUNK_WS, "selection": "annealed"}
    uniform = {"objective": "chunk", "plan": "listed"}
    first, last = draw(), draw(iteration=5)
    assert torch.equal(select(annealed, first).selected, select(CHUNK_WS, first).selected)
    assert torch.equal(select(annealed, last).selected, select(uniform, last).selected)
    assert not torch.equal(select(CHUNK_WS, last).selected, select(uniform, last).selected)


def test_an_exponent_tempers_the_weights_of_the_draw_and_of_its_correction():
    unbiased = {**CHUNK_WS, "selection": "unbiased", "selection_exponent": 0.5}
    root = WEIGHTS.sqrt()
    made = select(unbiased)
    assert made.weights is not None
    assert torch.allclose(made.weights, (root.sum() / (2 * root)).expand(B, -1))
    annealed = {**CHUNK_WS, "selection": "annealed", "selection_exponent": 0.5}
    tempered = {**CHUNK_WS, "selection_exponent": 0.5}
    assert torch.equal(select(annealed).selected, select(tempered).selected)


def test_trajectory_weights_use_own_l1_distances():
    """One of two chunks is drawn by an exponential race, which the test runs with the weights of Eq. (16) by loops."""
    own = {**CHUNK_WS, "selection": "trajectory"}
    trajectories = drawn()
    trajectories.states[:, 0] *= torch.logspace(-3, 3, B).reshape(B, 1, 1)  # distances of the first step from 1 to 1000
    sizes = method_of(small_params(own)).plan.sizes
    distances = relative_l1(trajectories.states)[:, : sum(sizes)].to(torch.float64)
    weights = torch.stack([part.mean(dim=1) for part in distances.split(sizes, dim=1)], dim=1) / distances.mean(
        dim=1, keepdim=True
    )
    made, expected, of_the_mean = [], [], []
    for context in map(draw, range(1, 6)):
        stream = generator("chunks", context.seed, context.iteration, context.update)
        expected.append(select_chunks(weights, 0.5, stream).tolist())
        made.append(select(own, context, trajectories).selected.tolist())
        of_the_mean.append(select(CHUNK_WS, context, trajectories).selected.tolist())
    assert made == expected
    assert made != of_the_mean


def test_only_the_given_chunks_are_trained():
    given = {"objective": "chunk", "plan": "step", "train_chunks": [1, 3]}
    made = select(given)
    assert made.selected.sum(dim=1).tolist() == [1] * B  # half of two
    assert not made.selected[:, [0, 2]].any()
    assert made.selected.any(dim=0).tolist() == [False, True, False, True]
    corrected = select({**given, "selection": "unbiased"})
    assert corrected.weights is not None
    pair = torch.tensor(PROFILE, dtype=torch.float64)[[1, 3]]
    assert corrected.weights[0].tolist() == pytest.approx(
        [0, float(pair.sum() / (2 * pair[0])), 0, float(pair.sum() / (2 * pair[1]))]
    )


def test_an_adaptive_plan_is_each_trajectorys_own():
    made = select({"objective": "chunk", "plan": "adaptive"})
    assert len({tuple(row) for row in made.assignment.chunk.tolist()}) > 1
    assert int(made.assignment.sizes.max()) <= 2
    assert bool((made.selected.sum(dim=1) == made.assignment.num_chunks // 2).all())
    assert not (made.selected & ~made.assignment.exists).any()


def test_noise_weights_follow_trained_steps():
    variant = {"objective": "step", "plan": "step", "step_weights": "noise"}
    grid = method_of(small_params(variant)).grid
    by_step = noise_weights(grid.transition_stds())
    made = select(variant)
    assert made.weights is not None
    assert torch.allclose(made.weights, by_step.expand(B, -1))
    noisy = torch.zeros(B, N, dtype=torch.bool)
    noisy[torch.arange(B), torch.arange(B) % N] = True  # a branch each
    branch = {**variant, "branching": {"points": 2, "children": 3}, "fraction": 1.0}
    one = select(branch, what=drawn(noisy))
    assert one.assignment.max_chunks == 1
    assert one.selected.all()
    assert one.weights is not None
    assert torch.allclose(one.weights[:, 0], by_step[torch.arange(B) % N])
    assert made.kl_weights is None and one.kl_weights is None  # Eq. (8) of TempFlow-GRPO weighs the clipped term alone


def test_interval_weights_follow_time_grid():
    variant = {"objective": "step", "plan": "step", "step_weights": "interval"}
    times = method_of(small_params(variant)).grid.times
    inverse = 1 / (times[:-2] - times[1:-1])
    made = select(variant)
    assert made.weights is not None
    assert torch.allclose(made.weights, (inverse / inverse.mean()).expand(B, -1))
    assert made.kl_weights is None


def test_noise_weights_and_importance_weights_multiply():
    by_noise = {"objective": "step", "plan": "step", "step_weights": "noise"}
    made = select({**by_noise, "selection": "unbiased"})
    unbiased = select({"objective": "step", "plan": "step", "selection": "unbiased"})
    noisy = select(by_noise)
    assert made.weights is not None and unbiased.weights is not None and noisy.weights is not None
    assert torch.equal(made.weights, noisy.weights * unbiased.weights)
    assert made.kl_weights is not None and unbiased.kl_weights is not None
    assert torch.equal(made.kl_weights, unbiased.weights)
    assert torch.equal(unbiased.kl_weights, unbiased.weights)


def test_a_window_trains_its_steps_alone():
    noisy = torch.zeros(B, N, dtype=torch.bool)
    noisy[:, 1:3] = True
    variant = {"objective": "step", "plan": "step", "window": {"num_steps": 2, "stride": 1, "every": 1}}
    made = select({**variant, "fraction": 1.0}, what=drawn(noisy))
    assert made.assignment.chunk.tolist() == [[-1, 0, 1, -1]] * B
    assert made.selected.all()
    half = select({**variant, "fraction": 0.5}, what=drawn(noisy))
    assert half.selected.sum(dim=1).tolist() == [1] * B


def test_the_control_has_the_gradient_of_the_chunk_objective_at_the_first_update():
    """Same draw, same advantages, all ratios 1: the coefficients of every step agree to rounding."""
    control = select({"objective": "step", "plan": "listed", "step_weights": "chunk-size"})
    chunk = select({"objective": "chunk", "plan": "listed"})
    log_probs = torch.randn(B, N, dtype=torch.float64)
    advantages = torch.randn(B, dtype=torch.float64)

    def coefficients(made: TrainedChunks) -> tuple[torch.Tensor, torch.Tensor]:
        return gradient_coefficients(log_probs, Terms(log_probs, advantages, made), Bounds(0.1, 0.3))

    for by_step, by_chunk in zip(coefficients(control), coefficients(chunk), strict=True):
        assert torch.allclose(by_step, by_chunk, rtol=1e-14, atol=0)
    assert torch.equal(control.assignment.chunk, torch.tensor([step_plan(N).chunk_of_step()] * B))


@pytest.mark.parametrize("plan", ["listed", "adaptive"])
def test_the_step_objective_trains_the_single_steps_of_the_drawn_chunks(plan):
    steps, chunks = (select({"objective": level, "plan": plan}) for level in ("step", "chunk"))
    assert torch.equal(steps.assignment.chunk, torch.tensor([[0, 1, 2, 3]] * B))
    assert torch.equal(steps.selected, chunks.assignment.to_steps(chunks.selected.double()) > 0)
    assert steps.weights is None


def test_chunk_importance_weights_equal_step_weights():
    weighted = {"plan": "listed", "selection": "unbiased"}
    steps, chunks = (select({"objective": level, **weighted}) for level in ("step", "chunk"))
    assert steps.weights is not None and chunks.weights is not None
    assert torch.equal(steps.weights, chunks.assignment.to_steps(chunks.weights))


EARLY = (1.0, 0.5, 0.4, 0.39, 0.38, 0.37)
"""Two lines in log scale: steps 0 and 1, and steps 2 to 5."""
LATE = (1.0, 0.99, 0.98, 0.97, 0.4, 0.2)
"""Two lines: steps 0 to 3, and steps 4 and 5."""


def dynamic() -> ChunkSelector:
    method = method_of(small_params({"objective": "chunk", "plan": "guided", "replan_every": 2}))
    return ChunkSelector(replace(method, plan=ChunkPlan((2, 4)), chunk_weights=torch.ones(2)))


def test_a_dynamic_plan_follows_the_policy_every_so_many_iterations():
    chunks = dynamic()
    curves = (EARLY, LATE, LATE, EARLY, EARLY)
    told = [chunks.follow(curve, iteration) for iteration, curve in enumerate(curves, start=1)]
    assert [each["chunk_size/0"] for each in told] == [2, 2, 4, 4, 2]
    assert [each["boundary_shift"] for each in told] == [0, 0, 2, 2, 0]
    drift = profile_drift(LATE, EARLY)
    assert [each["profile_drift"] for each in told] == [0, drift, drift, 0, 0]


def test_a_resumed_run_goes_on_with_its_plan():
    chunks, resumed = dynamic(), dynamic()
    chunks.follow(EARLY, 1)
    chunks.follow(LATE, 3)
    resumed.load_state(chunks.state())
    assert resumed.plan == chunks.plan == ChunkPlan((4, 2))
    assert torch.equal(resumed.state()["weights"], chunk_weights(LATE, ChunkPlan((4, 2))))
    assert resumed.follow(EARLY, 4) == chunks.follow(EARLY, 4)


def test_fixed_plan_reports_no_metrics():
    assert chunks_of(CHUNK_WS).follow(PROFILE, 1) == {}
