"""Every method on the toy checkpoint: it trains, goes on from halfway to the same bytes, does what sets it apart."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from chunk_grpo.families.models.flux import FluxFamily
from chunk_grpo.image_files import as_pictures
from chunk_grpo.scorers.base import ScoreBatch
from chunk_grpo.training.rollouts import Experience, Iteration, collect_experience
from chunk_grpo.training.run import TrainingData
from chunk_grpo.training.schedule import starts_per_prompt

from .conftest import CHUNK_WS, PROFILE, Outcome, method_of, small_params

STEP: dict[str, Any] = {"objective": "step", "plan": "step"}
CHUNK: dict[str, Any] = {"objective": "chunk", "plan": "listed"}
BRANCHING: dict[str, Any] = {**STEP, "branching": {"points": 2, "children": 3}, "fraction": 1.0}
WINDOW: dict[str, Any] = {**STEP, "window": {"num_steps": 2, "stride": 1, "every": 1}, "fraction": 1.0}
DRAWN: dict[str, Any] = {**STEP, "window": {"num_steps": 2, "starts": [0, 1, 2]}, "fraction": 1.0}
METHODS: dict[str, dict[str, Any]] = {
    "dance-grpo": {**STEP, "sde": "dance", "eta": 0.3},
    "flow-grpo": {**STEP, "advantage_std": "global", "kl_coef": 0.01},
    "single": {"objective": "chunk", "plan": "single", "fraction": 1.0},
    "dynamic": {"objective": "chunk", "plan": "guided", "replan_every": 1},
    "adaptive": {"objective": "chunk", "plan": "adaptive"},
    "unbiased": {**CHUNK, "selection": "unbiased"},
    "annealed": {**CHUNK, "selection": "annealed"},
    "trajectory": {**CHUNK, "selection": "trajectory", "selection_exponent": 0.5},
    "first-chunk": {**CHUNK, "train_chunks": (0,), "fraction": 1.0},
    "control": {"objective": "step", "plan": "listed", "step_weights": "chunk-size"},
    "clip-ranges": {**CHUNK, "clip_ranges": (5e-5, 2e-4)},
    "chunk-rewards": {**CHUNK, "chunk_rewards": ({"shapes-graded": 1.0}, {"shapes-vivid": 1.0})},
    "chunk-gains": {**CHUNK, "credit": "chunk-gains"},
    "step-gains": {**STEP, "credit": "chunk-gains"},
    "advantages": {**CHUNK, "combine": "advantages"},
    "gdpo": {**CHUNK, "combine": "gdpo"},
    "tempflow": {**BRANCHING, "step_weights": "noise"},
    "noise-weights": {**STEP, "step_weights": "noise"},
    "mixgrpo": WINDOW,
    "flow-grpo-fast": DRAWN,
    "cps": {**CHUNK, "sde": "cps", "eta": 0.7},
    "guard": {**STEP, "ratio_norm": "guard", "clip_range": 4e-6},
    "dppo": {**STEP, "trust_region": "divergence", "clip_range": 1e-8},
    "guard-branching": {**BRANCHING, "ratio_norm": "guard"},
    "awm": {**STEP, "likelihood": "matching", "clip_range": 0.2},
    "chunk-awm": {**CHUNK, "likelihood": "matching", "clip_range": 0.2},
    "nft": {**STEP, "likelihood": "nft"},
    "awm-ode": {**STEP, "likelihood": "matching", "clip_range": 0.2, "sde": "ode"},
    "nft-ode": {**STEP, "likelihood": "nft", "sde": "ode"},
}


WITH_STATE = ("dynamic", "tempflow", "guard", "nft", "chunk-gains", "flow-grpo-fast")
"""Methods whose stopped run holds more than the others': a plan, parts of trajectories, means, velocities, advantages
of chunks; and one that draws steps, the same after a stop."""

ALONE = ("dance-grpo", "adaptive", "chunk-rewards", "mixgrpo", "cps", "dppo", "guard-branching", "chunk-awm", "awm-ode")
"""Other methods with code of their own in a training. What the rest change is in test_chunk_selection.py and
test_advantages.py, from the settings to the numbers."""

QUIET: dict[str, Any] = {"heldout": {"every": 10, "num_prompts": 1, "images_per_prompt": 1}}


def each(usual: tuple[str, ...]) -> list[Any]:
    """All methods, those that are not usual for the slow tests."""
    return [name if name in usual else pytest.param(name, marks=pytest.mark.slow) for name in METHODS]


def require_training(name: str, made: Outcome) -> None:
    of = {(iteration, metric): value for iteration, metric, value in made.rows}
    assert of[1, "grad_norm"] > 0
    has_ratio = METHODS[name].get("likelihood") != "nft"
    assert (of[1, "ratio_max"] - of[1, "ratio_min"] > 1e-8) == has_ratio  # the second update is off policy


@pytest.mark.parametrize("name", each(ALONE))
def test_a_method_trains(name, train, tmp_path):
    require_training(name, train(tmp_path, variant=METHODS[name], iterations=1, **QUIET))


@pytest.mark.parametrize("name", each(WITH_STATE))
def test_a_method_goes_on_from_halfway(name, train, resumed, tmp_path):
    run = {"variant": METHODS[name], "iterations": 2, "checkpoint_every": 2, **QUIET}
    whole = train(tmp_path / "whole", **run)
    require_training(name, whole)
    assert resumed(tmp_path / "stopped", 18, **run).equals(whole)


def test_methods_differ_and_settings_that_change_nothing_do_not(train, tmp_path):
    """K = T - 1 is the step level; a group's images from one noise are another experience."""
    made = {
        name: train(tmp_path / name, variant=variant, iterations=1, **QUIET, **changes)
        for name, variant, changes in (
            ("step", STEP, {}),
            ("chunks of one step", {"objective": "chunk", "plan": "step"}, {}),
            ("foreground", STEP, {"reward_in_background": False}),
            ("chunk", CHUNK, {}),
            ("one noise", STEP, {"same_noise_in_group": True}),
            ("a window of all steps", {**STEP, "window": {"num_steps": 4, "starts": [0]}}, {}),
        )
    }

    same = {name for name in made if made[name].has_weights_of(made["step"])}
    assert same == {"step", "chunks of one step", "foreground", "a window of all steps"}


def experience(
    policy: Callable[[], FluxFamily], data: TrainingData, variant: dict[str, Any], **changes: Any
) -> Experience:
    params = small_params(variant, **changes)
    starts = 2 * starts_per_prompt(params.train.group_size, method_of(params).variant.branching)
    where = Iteration(2, data.prompts.rows([1, 3]), range(starts))
    return collect_experience(policy(), method_of(params), where, data.reward, params.train, seed=0)


def test_a_branch_has_its_noise_in_one_step(policy, data):
    """Two prompts, two runs each (six images by three children), two branch points."""
    made = experience(policy, data, BRANCHING, group_size=6)
    trajectories = made.trajectories
    rows = 2 * 2 * 2 * 3
    assert trajectories.states.shape[:2] == (rows, 2)
    assert made.group_size == 3  # compared with the other children of the same run and point
    assert made.prompts.ids == ["p1"] * 12 + ["p3"] * 12
    assert trajectories.noisy.sum(dim=1).tolist() == [1] * rows
    assert torch.equal(trajectories.noisy.int().argmax(dim=1), trajectories.first_step)
    points = trajectories.first_step.view(4, 2, 3)
    assert len(set(points[0, :, 0].tolist())) == 2
    assert torch.equal(points, points[:1, :, :1].expand_as(points))
    before = trajectories.states[:, 0].view(8, 3, -1)
    assert torch.equal(before, before[:, :1].expand_as(before))  # children share where they come from
    after = trajectories.states[:, 1].view(8, 3, -1)
    assert float((after[:, 0] - after[:, 1]).abs().min(dim=1).values.max()) > 0
    trained = trajectories.log_probs[trajectories.noisy]
    assert bool((trained != 0).all())
    assert bool((trajectories.log_probs[~trajectories.noisy] == 0).all())


def test_a_branch_that_is_evaluated_alone_has_the_same_children(policy, data):
    """The second prompt's run alone, as in another process: its noise is named by its number."""
    both = experience(policy, data, BRANCHING, group_size=3)
    params = small_params(BRANCHING, group_size=3, rollout_batch_size=100, micro_batch_size=100)
    where = Iteration(2, data.prompts.rows([1, 3]), [1])
    alone = collect_experience(policy(), method_of(params), where, data.reward, params.train, seed=0)
    half = both.trajectories.states[len(both.trajectories.states) // 2 :]
    assert torch.allclose(alone.trajectories.states, half, rtol=0, atol=1e-4)


def test_images_are_predicted_and_scored_at_the_beginning_of_each_chunk(policy, data):
    """Chunks of 1 and 3 steps: at t = 1 and after the first step, by the velocity of the rollout."""
    gained, plain = (experience(policy, data, {**CHUNK, "credit": "chunk-gains"}), experience(policy, data, CHUNK))
    family, states = policy(), plain.trajectories.states
    assert torch.equal(gained.trajectories.states, states)
    assert gained.trajectories.predicted is None  # scored, and not kept during the update
    assert plain.predicted == {}
    times = method_of(small_params(CHUNK)).grid.times.float()
    prompts = gained.prompts.conditioning.rows(range(6))
    for number, step in enumerate((0, 1)):
        x, t = states[:, step], times[step].expand(6)
        with torch.no_grad():
            images = family.decode(x - times[step] * family.velocity(x, t, prompts))
        batch = ScoreBatch(as_pictures(images.numpy()), gained.prompts.texts, gained.prompts.metadata, [0] * 6)
        for name, scores in data.reward.scores(batch).items():
            assert gained.predicted[name][:, number] == pytest.approx(scores, abs=1e-2)
            assert gained.scores[name].tolist() == plain.scores[name].tolist()


def test_a_window_moves_and_the_rest_is_the_ode(policy, data):
    made = experience(policy, data, WINDOW)  # the second iteration
    assert made.trajectories.noisy.tolist() == [[False, True, True, False]] * 6
    assert bool((made.trajectories.log_probs[:, [0, 3]] == 0).all())


def test_a_drawn_window_differs_by_iteration_and_is_one_for_all_processes(policy, data):
    """One prompt in two processes, each with a part of the images."""
    params = small_params(DRAWN, group_size=2)
    family, prompts = policy(), data.prompts.rows([1])

    def first_noisy(number: int, start: int, seed: int = 0) -> int:
        where = Iteration(number, prompts, [start])
        made = collect_experience(family, method_of(params), where, data.reward, params.train, seed)
        (noisy,) = made.trajectories.noisy.tolist()
        first: int = noisy.index(True)
        assert sum(noisy) == 2 and noisy[first + 1]
        return first

    drawn = [[first_noisy(number, start) for number in range(1, 9)] for start in (0, 1)]
    assert drawn[0] == drawn[1]
    assert set(drawn[0]) == {0, 1, 2}
    assert drawn[0] != [first_noisy(number, 0, seed=1) for number in range(1, 9)]


@pytest.mark.parametrize(
    ("batch_size", "first_evaluations"), [(4, [1, 1]), (6, [2, 1])], ids=["a group", "across groups"]
)
def test_one_first_evaluation_serves_a_group_that_starts_from_one_noise(
    batch_size, first_evaluations, policy, data, monkeypatch
):
    """`test_reference.py` has that the images are those of a trainer that evaluates each alone."""
    evaluated: list[int] = []
    velocity = FluxFamily.velocity

    def counting(self: FluxFamily, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        evaluated.append(len(x))
        return velocity(self, x, *rest)

    monkeypatch.setattr(FluxFamily, "velocity", counting)
    run = {
        "same_noise_in_group": True,
        "group_size": 4,
        "rollout_batch_size": batch_size,
        "micro_batch_size": batch_size,
    }
    experience(policy, data, CHUNK_WS, **run)
    sizes = [batch_size, 8 - batch_size]
    assert evaluated == [
        count for first, size in zip(first_evaluations, sizes, strict=True) for count in [first, *[size] * len(PROFILE)]
    ]
