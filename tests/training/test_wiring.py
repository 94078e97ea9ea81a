"""Each setting and each number of an iteration gets to where it is used."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from chunk_grpo.core.flow import time_grid
from chunk_grpo.core.sde import step_noise
from chunk_grpo.errors import TransientError
from chunk_grpo.families.models.flux import FluxFamily
from chunk_grpo.families.prompts import PromptSet
from chunk_grpo.training import trainer
from chunk_grpo.training.advantages import advantages_of
from chunk_grpo.training.chunk_selection import ChunkSelector, DrawContext
from chunk_grpo.training.ema import ExponentialMovingAverage
from chunk_grpo.training.forward_values import MatchingValues, NftValues, drawn_pairs
from chunk_grpo.training.heldout import heldout_images
from chunk_grpo.training.processes import Processes
from chunk_grpo.training.rollouts import Experience, Iteration, collect_experience
from chunk_grpo.training.run import TrainingData
from chunk_grpo.training.schedule import prompts_of_iteration, starts_per_prompt

from .conftest import CHUNK_WS, Outcome, method_of, small_params

Train = Callable[..., Outcome]
QUIET: dict[str, Any] = {"heldout": {"every": 10, "num_prompts": 1, "images_per_prompt": 1}, "kl_coef": 0.0}
BRANCHING = {"objective": "step", "plan": "step", "branching": {"points": 2, "children": 3}, "fraction": 1.0}


def test_each_iteration_draws_its_own_prompts(
    train: Train, data: TrainingData, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []

    def recording(family: Any, method: Any, iteration: Iteration, *rest: Any) -> Experience:
        seen.append(list(iteration.prompts.ids))
        return collect_experience(family, method, iteration, *rest)

    monkeypatch.setattr(trainer, "collect_experience", recording)
    train(tmp_path, seed=3, iterations=3, **QUIET)
    drawn = [prompts_of_iteration(number, 2, len(data.prompts), 3) for number in range(3)]
    assert seen == [[data.prompts.ids[i] for i in rows] for rows in drawn]
    assert len({tuple(names) for names in seen}) > 1


def test_weight_decay_shrinks_the_weights(train: Train, policy: Callable[[], FluxFamily], tmp_path: Any) -> None:
    """One AdamW step takes the learning rate times the decay off each weight, beside its step."""
    rate, decay = 1e-4, 100.0
    run = {"iterations": 1, "updates_per_iteration": 1, "learning_rate": rate, **QUIET}
    plain, decayed = (train(tmp_path / f"{d}", weight_decay=d, **run).weights for d in (0.0, decay))
    for name, before in policy().transformer.state_dict().items():
        assert torch.allclose(decayed[name] - plain[name], -rate * decay * before, rtol=1e-3, atol=1e-6)


def test_a_gradient_is_clipped_to_its_norm() -> None:
    weight = nn.Parameter(torch.zeros(2))
    weight.grad = torch.tensor([3.0, 4.0])
    assert Processes().clip_gradient([weight], 0.5) == pytest.approx(5.0)
    assert weight.grad.tolist() == pytest.approx([0.3, 0.4], rel=1e-4)
    assert Processes().clip_gradient([weight], 10.0) == pytest.approx(0.5, rel=1e-4)
    assert weight.grad.tolist() == pytest.approx([0.3, 0.4], rel=1e-4)


def test_the_gradient_is_clipped_to_the_setting(train: Train, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []

    def recording(self: Processes, parameters: Any, max_norm: float) -> float:
        limits.append(max_norm)
        return 0.0

    monkeypatch.setattr(Processes, "clip_gradient", recording)
    train(tmp_path, iterations=1, max_grad_norm=0.25, **QUIET)
    assert limits == [0.25, 0.25]


def test_weights_are_averaged_after_each_update(train: Train, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    averaged: list[int] = []
    update = ExponentialMovingAverage.update

    def counting(self: ExponentialMovingAverage, updates: int) -> None:
        averaged.append(updates)
        update(self, updates)

    monkeypatch.setattr(ExponentialMovingAverage, "update", counting)
    train(tmp_path, iterations=2, updates_per_iteration=2, ema_decay=0.5, **QUIET)
    assert averaged == [1, 2, 3, 4]


def test_a_slow_policy_samples_and_gives_the_old_velocities(
    train: Train, policy: Callable[[], FluxFamily], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With decay 1/4 after one update, (w0 + 3 w1) / 4 samples in iteration 2, and w1 is trained; also when stopped."""
    seen: dict[str, list[torch.Tensor]] = {"rollout": [], "old": [], "trained": []}

    def of(family: Any) -> torch.Tensor:
        return next(family.trainable_parameters()).detach().clone()

    def rolling_out(family: Any, *rest: Any) -> Experience:
        seen["rollout"].append(of(family))
        return collect_experience(family, *rest)

    predict = NftValues.predict

    def recording(self: NftValues, evaluated: Any, rows: Any, steps: Any) -> Any:
        seen["trained" if torch.is_grad_enabled() else "old"].append(of(evaluated.__self__))
        return predict(self, evaluated, rows, steps)

    monkeypatch.setattr(trainer, "collect_experience", rolling_out)
    monkeypatch.setattr(NftValues, "predict", recording)
    average = {"rate": 0.25, "limit": 0.75}
    slow = {"objective": "step", "plan": "step", "likelihood": "nft", "sampling_average": average}
    run = {"variant": slow, "iterations": 2, "updates_per_iteration": 1, "ema_decay": 0.9, **QUIET}
    whole = train(tmp_path / "whole", checkpoint_every=2, **run)
    w0, w1 = seen["trained"][0], seen["trained"][-1]
    assert torch.equal(w0, of(policy()))
    assert not torch.equal(w0, w1)
    for found in (seen["rollout"], [seen["old"][0], seen["old"][-1]]):
        assert torch.equal(found[0], w0)
        assert torch.allclose(found[1], (w0 + 3 * w1) / 4, rtol=1e-6, atol=1e-9)
        assert not torch.equal(found[1], w1)
    with pytest.raises(TransientError, match="training resumes from there"):
        train(tmp_path / "stopped", stop_at=24, checkpoint_every=2, **run)
    resumed = train(tmp_path / "stopped", checkpoint_every=2, **run)
    assert resumed.without_times() == whole.without_times()
    assert all(torch.equal(resumed.weights[key], whole.weights[key]) for key in whole.weights)


def test_warm_up_goes_on_where_a_stopped_training_was(train: Train, tmp_path: Any) -> None:
    """Within the second iteration; and the setting gets to the average."""
    run = {"iterations": 2, "ema_decay": 0.9, "checkpoint_every": 2, "save": True, **QUIET}
    saved: dict[str, dict[str, torch.Tensor]] = {}
    with pytest.raises(TransientError, match="training resumes from there"):
        train(tmp_path / "warm-stopped", stop_at=20, ema_warmup=True, **run)
    for name, warms_up in (("warm-stopped", True), ("warm", True), ("cold", False)):
        train(tmp_path / name, ema_warmup=warms_up, **run)
        (file,) = (tmp_path / name / "saved" / "transformer").glob("*.safetensors")
        saved[name] = load_file(file)
    assert all(torch.equal(saved["warm-stopped"][key], value) for key, value in saved["warm"].items())
    assert not all(torch.equal(saved["cold"][key], value) for key, value in saved["warm"].items())


def test_a_dynamic_plan_follows_the_iteration_in_progress(
    train: Train, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    follow = ChunkSelector.follow

    def recording(self: ChunkSelector, curve: Any, iteration: int) -> dict[str, float]:
        asked.append(iteration)
        return follow(self, curve, iteration)

    monkeypatch.setattr(ChunkSelector, "follow", recording)
    variant = {"objective": "chunk", "plan": "guided", "replan_every": 1}
    train(tmp_path, variant=variant, iterations=2, **QUIET)
    assert asked == [1, 2]


def test_checkpoints_are_written_when_due_and_at_the_end(train: Train, tmp_path: Any) -> None:
    made = train(tmp_path, iterations=3, checkpoint_every=2, **QUIET)
    assert [iteration for iteration, name, _ in made.rows if name == "seconds_checkpoint"] == [2, 3]


def test_checkpoints_by_the_clock(train: Train, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Iterations of 25 s: a minute after a checkpoint of either kind has passed in the third iteration after it."""
    now, iterate = 1000.0, trainer.Trainer._iterate

    def slowly(self: trainer.Trainer, iteration: int) -> None:
        nonlocal now
        now += 25
        iterate(self, iteration)

    monkeypatch.setattr(trainer, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(trainer.Trainer, "_iterate", slowly)
    made = train(tmp_path, iterations=8, checkpoint_every=4, checkpoint_minutes=1.0, **QUIET)
    assert [number for number, name, _ in made.rows if name == "seconds_checkpoint"] == [3, 4, 7, 8]


def test_trackers_get_at_most_sixteen_pictures(train: Train, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 18 held-out images, before training and after its iteration."""
    shown: list[Any] = []
    sink = SimpleNamespace(log=lambda _, metrics, images=None: shown.append(images), close=lambda **_: None)
    monkeypatch.setattr(trainer, "open_sinks", lambda *_, **options: [sink])
    train(tmp_path, iterations=1, heldout={"every": 1, "num_prompts": 2, "images_per_prompt": 9})
    assert [len(images) for images in shown if images is not None] == [16, 16]


@pytest.fixture(scope="module")
def branched(policy: Callable[[], FluxFamily], data: TrainingData) -> list[Experience]:
    """Branches of six iterations."""
    params, family = small_params(BRANCHING), policy()
    method = method_of(params)
    starts = range(starts_per_prompt(params.train.group_size, method.variant.branching))
    iterations = [Iteration(number, data.prompts.rows([1]), starts) for number in range(1, 7)]
    return [collect_experience(family, method, each, data.reward, params.train, seed=0) for each in iterations]


def test_each_iteration_draws_its_own_branch_points(branched: list[Experience]) -> None:
    assert len({tuple(made.trajectories.first_step.tolist()) for made in branched}) > 1


def test_each_iteration_draws_its_own_noise_of_branches(branched: list[Experience]) -> None:
    """By the difference of two children, in which their common mean is gone."""
    steps = [made.trajectories.states[0, 1] - made.trajectories.states[1, 1] for made in branched]
    directions = torch.stack([(step / step.norm()).flatten() for step in steps])
    assert float((directions @ directions.T - torch.eye(len(steps))).abs().max()) < 0.5


def test_each_branch_point_draws_its_own_noise(branched: list[Experience]) -> None:
    """Children 0 and 1 of the same run at both points of an iteration."""
    for made in branched:
        kept = made.trajectories
        points = [(kept.first_step == step).nonzero()[:2, 0] for step in kept.first_step.unique()]
        steps = [(kept.states[a, 1] - kept.states[b, 1]).flatten() for a, b in points]
        first, second = (step / step.norm() for step in steps)
        assert abs(float(first @ second)) < 0.5


def pairs_of(context: DrawContext, rows: Any, steps: Any, alike: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Drawn times and noise of items, with latents of 5 tokens with 2 channels."""
    variant = {"objective": "step", "plan": "step", "likelihood": "matching", "forward_times": "stratified"}
    return drawn_pairs(context, method_of(small_params(variant)), torch.Size([5, 2]), alike)(rows, steps)


def test_each_update_draws_its_own_pairs_of_the_forward_process() -> None:
    """A row and step have them whatever process has them, other ones in each update, iteration and seed."""
    context = DrawContext(seed=0, iteration=1, iterations=3, update=0, rows=range(4), total=4)
    rows, steps = torch.tensor([1, 2]), torch.tensor([0, 0])
    made = pairs_of(context, rows, steps)
    elsewhere = pairs_of(replace(context, rows=range(1, 3)), rows - 1, steps)
    others = [replace(context, **change) for change in ({"seed": 1}, {"iteration": 2}, {"update": 1})]
    drawn = [*(pairs_of(other, rows, steps) for other in others), pairs_of(context, rows, steps + 1)]
    for number, values in enumerate(made):
        assert torch.equal(elsewhere[number], values)
        assert not any(bool((other[number] == values).any()) for other in drawn)
        assert not bool((values[0] == values[1]).any())


def test_rows_that_are_alike_share_their_pairs_of_the_forward_process() -> None:
    """Rows 3 to 5 of an update, in whatever process; their neighbours, another step and another iteration do not."""
    context = DrawContext(seed=0, iteration=1, iterations=3, update=0, rows=range(9), total=9)
    rows, step = torch.arange(9), torch.ones(9, dtype=torch.int64)
    second = pairs_of(replace(context, rows=range(4, 9)), rows[:5], step[:5], 3)
    others = pairs_of(context, rows, step + 1, 3), pairs_of(replace(context, iteration=2), rows, step, 3)
    for number, values in enumerate(pairs_of(context, rows, step, 3)):
        assert torch.equal(values, values[[0, 0, 0, 3, 3, 3, 6, 6, 6]])
        assert not any(bool((values[a] == values[b]).any()) for a, b in ((0, 3), (3, 6), (0, 6)))
        assert torch.equal(second[number], values[4:])
        assert not any(bool((other[number] == values).any()) for other in others)


@pytest.mark.parametrize(("shared", "times"), [("image", "grid"), ("group", "stratified")])
def test_a_group_shares_its_pairs_of_the_forward_process_if_set(
    shared: str, times: str, train: Train, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups of 3 images, 2 of them in the only update, all steps trained: time and noise of each (row, step)."""
    seen: dict[tuple[int, int], torch.Tensor] = {}
    drawn: dict[tuple[int, int], float] = {}
    grid = time_grid(5, 3.0)
    predict = MatchingValues.predict

    def recording(self: MatchingValues, policy: Any, rows: torch.Tensor, steps: torch.Tensor) -> Any:
        made = predict(self, policy, rows, steps)
        items = zip(rows.tolist(), steps.tolist(), strict=True)
        for item, noise, t in zip(items, made.noise, made.t.tolist(), strict=True):
            # In the old and in the new policy's pass.
            assert torch.equal(seen.setdefault(item, noise), noise)
            assert drawn.setdefault(item, t) == t
        return made

    monkeypatch.setattr(MatchingValues, "predict", recording)
    variant = {"objective": "step", "plan": "step", "likelihood": "matching", "fraction": 1.0}
    run = {"iterations": 1, "updates_per_iteration": 1, **QUIET}
    train(tmp_path, variant={**variant, "forward_noise": shared, "forward_times": times}, **run)
    assert set(seen) == {(row, step) for row in range(6) for step in range(4)}
    for (row, step), noise in seen.items():
        alike = {r for r in range(6) if torch.equal(seen[r, step], noise)}
        assert alike == ({row} if shared == "image" else {row // 3 * 3 + number for number in range(3)})
        assert not torch.equal(seen[row, (step + 1) % 4], noise)
        if times == "grid":
            assert drawn[row, step] == pytest.approx(float(grid[step]), abs=1e-6)
        else:  # the grid read at s 5 / 4 and (s + 1) 5 / 4: 1, 0.89.., 0.75, 0.53.., 0
            assert {r for r in range(6) if drawn[r, step] == drawn[row, step]} == alike
            ends = np.interp([step * 1.25, (step + 1) * 1.25], range(6), grid.numpy())
            assert ends[1] < drawn[row, step] < ends[0]


def test_stratified_times_and_the_solver_go_on_where_a_stopped_training_was(train: Train, tmp_path: Any) -> None:
    """To the same bytes; and each setting gets to the training."""
    plain = {"objective": "chunk", "plan": "listed", "likelihood": "matching", "sde": "ode"}
    variant = {**plain, "forward_times": "stratified", "solver": "dpm2"}
    run = {"iterations": 2, "checkpoint_every": 2, **QUIET}
    whole = train(tmp_path / "whole", variant=variant, **run)
    with pytest.raises(TransientError, match="training resumes from there"):
        train(tmp_path / "stopped", variant=variant, stop_at=30, **run)
    resumed = train(tmp_path / "stopped", variant=variant, **run)
    assert resumed.without_times() == whole.without_times()
    assert all(torch.equal(resumed.weights[key], whole.weights[key]) for key in whole.weights)
    for key in ("forward_times", "solver"):
        other = train(tmp_path / key, variant={name: variant[name] for name in variant if name != key}, **run)
        assert any(not torch.equal(other.weights[name], whole.weights[name]) for name in whole.weights)


def test_advantages_are_cut_at_the_setting(branched: list[Experience]) -> None:
    made = branched[0]
    scores = {name: np.array([0.0, 0.0, 9.0] * 2) for name in made.scores}
    experience = Experience(made.prompts, made.trajectories, 3, scores, {})
    weights = dict.fromkeys(made.scores, 1.0)
    method = method_of(small_params(BRANCHING, advantage_clip=0.5))
    # Deviations -3, -3, 6 over 5.196: -0.577 and 1.155.
    assert advantages_of(experience, weights, method).tolist() == pytest.approx([-0.5, -0.5, 0.5] * 2)
    method = method_of(small_params(BRANCHING, advantage_clip=1.0))
    assert advantages_of(experience, weights, method).tolist() == pytest.approx([-0.577, -0.577, 1.0] * 2, abs=1e-3)


def test_variant_inherits_missing_settings_from_train_and_sampling() -> None:
    chunk = {"objective": "chunk", "plan": "listed"}
    own = {**chunk, "fraction": 1.0, "kl_coef": 0.25, "learning_rate": 0.125, "sde": "cps", "eta": 0.9}
    of_all = small_params(chunk, kl_coef=0.5, fraction=0.75)
    mine, theirs = method_of(small_params(own, kl_coef=0.5)), method_of(of_all)
    assert (mine.variant.fraction, theirs.variant.fraction) == (1.0, 0.75)
    assert (mine.variant.kl_coef, theirs.variant.kl_coef) == (0.25, 0.5)
    assert (mine.variant.learning_rate, theirs.variant.learning_rate) == (0.125, of_all.train.learning_rate)
    for method, sde, eta in ((mine, "cps", 0.9), (theirs, "flow", of_all.sampling.eta)):
        noise, sampler = step_noise(sde, method.grid.times, eta)
        assert torch.equal(method.grid.noise, noise)
        assert method.grid.sampler == sampler


def test_clip_range_of_variant_overrides_the_global_one() -> None:
    assert method_of(small_params(CHUNK_WS, clip_range=2e-4)).bounds.clip_range == 2e-4
    assert method_of(small_params({**CHUNK_WS, "clip_range": 3e-5}, clip_range=2e-4)).bounds.clip_range == 3e-5


def test_learning_rate_of_variant_overrides_the_global_one(train: Train, tmp_path: Any) -> None:
    run = {"iterations": 1, "updates_per_iteration": 2, **QUIET}
    own = train(tmp_path / "own", variant={**CHUNK_WS, "learning_rate": 3e-4}, learning_rate=1e-4, **run).weights
    of_all = {rate: train(tmp_path / f"{rate}", learning_rate=rate, **run).weights for rate in (1e-4, 3e-4)}
    assert all(torch.equal(own[name], value) for name, value in of_all[3e-4].items())
    assert not all(torch.equal(own[name], value) for name, value in of_all[1e-4].items())


def test_heldout_images_of_each_prompt_have_their_own_noise(
    policy: Callable[[], FluxFamily], prompts: PromptSet
) -> None:
    alike = prompts.rows([5, 5])
    named = PromptSet(["one", "two"], alike.texts, alike.metadata, alike.conditioning)
    settings = small_params(CHUNK_WS, heldout={"images_per_prompt": 1}).train
    one, two = heldout_images(policy(), time_grid(4, 3.0), named, settings)
    assert float(np.abs(one - two).mean()) > 0.01
