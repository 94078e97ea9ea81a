"""Two processes on the CPU train as one does: the same gradient, the same metrics, one writer, resumable.

Two processes do the usual jobs of this file, one after the other, with the variables of torchrun; two others do the
rare jobs, for slow tests.
"""

import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from chunk_grpo.families.prompts import PromptSet
from chunk_grpo.training.metrics import MetricRow
from chunk_grpo.training.state_files import read_state
from tests.training.conftest import CHUNK_WS, LORA
from tests.training.worker import Job, Seen, do, flat, result, run_pair

SMALL: dict[str, Any] = {"iterations": 2, "prompts_per_iteration": 4, "group_size": 2, "updates_per_iteration": 2}
LISTED = {"objective": "chunk", "plan": "listed"}
CONDITIONAL = {"guidance_gradient": "conditional"}
PAIRS = {"forward_noise": "group", "forward_times": "stratified"}
TWOS = {**SMALL, "rollout_batch_size": 2, "checkpoint_every": 10}
"""Calls of a process's reward: held-out images, two batches, held-out images, two batches, held-out images."""
LATE = {**SMALL, "checkpoint_every": None, "checkpoint_minutes": 1e-9}
THREES = {**SMALL, "rollout_batch_size": 3, "micro_batch_size": 3}
AVERAGED_LORA = LORA | {"ema_decay": 0.5, "old_log_probs": "training"}
BEST = {"every": 1, "num_prompts": 2, "images_per_prompt": 1, "seed": 0, "scorers": (), "patience": None}

SHARDED = {**SMALL, "shard_weights": True, "ema_decay": 0.5, "heldout": {**BEST, "keep_best": True}}
SHARDED_LORA = {**SMALL, **AVERAGED_LORA, "shard_weights": True, "kl_coef": 0.5, "gradient_checkpointing": True}

ONE_UPDATE = {**SHARDED, "kl_coef": 0.5, "iterations": 1, "updates_per_iteration": 1}

SAME_BATCHES = {
    "following": Job({"objective": "chunk", "plan": "guided", "replan_every": 1}, SMALL),
    "branching": Job(
        {"objective": "step", "plan": "step", "fraction": 1.0, "branching": {"points": 2, "children": 2}}, SMALL
    ),
    "sharded-half": Job(CHUNK_WS, {**SHARDED_LORA, "old_log_probs": "rollout"}, dtype="bfloat16"),
}
"""A process's share is one micro-batch, so that one process makes the same passes, one after the other."""

OTHER_BATCHES = {
    "weighted": Job(CHUNK_WS, SMALL),
    "adaptive": Job({"objective": "chunk", "plan": "adaptive"}, THREES),
    "global": Job({**CHUNK_WS, "advantage_std": "global"}, THREES),
    "chunk-size": Job({"objective": "step", "plan": "listed", "step_weights": "chunk-size"}, THREES),
    "lora": Job(CHUNK_WS, {**SMALL, **AVERAGED_LORA}),
    "sgd": Job(CHUNK_WS, {**SMALL, "iterations": 1, "updates_per_iteration": 1}, sgd=True),
    "sharded": Job(CHUNK_WS, {**SHARDED, "kl_coef": 0.5}),
    "sharded-lora": Job(CHUNK_WS, SHARDED_LORA | {"rollout_batch_size": 3, "micro_batch_size": 3}),
    "split-groups": Job(CHUNK_WS, {**SMALL, "prompts_per_iteration": 2}),
    "split-branches": Job(
        {"objective": "step", "plan": "step", "fraction": 1.0, "branching": {"points": 2, "children": 2}},
        {**SMALL, "prompts_per_iteration": 2, "group_size": 4},
    ),
    "sharded-uneven": Job({"objective": "chunk", "plan": "adaptive"}, {**SHARDED, **THREES}),
    "sharded-sgd": Job(CHUNK_WS, ONE_UPDATE, sgd=True),
    "guided": Job(CHUNK_WS, SMALL, cfg_scale=2.0),
    "awm": Job({"objective": "step", "plan": "step", "likelihood": "matching"}, SMALL),
    "nft": Job({"objective": "step", "plan": "step", "likelihood": "nft"}, SMALL),
    "nft-sharded": Job(
        {"objective": "step", "plan": "step", "likelihood": "nft", "sampling_average": {"rate": 0.2}}, SHARDED
    ),
    "shared-noise": Job(
        {**LISTED, "likelihood": "matching", **PAIRS, "sde": "ode", "solver": "dpm2"},
        {**SMALL, "prompts_per_iteration": 2},
    ),
    "gains": Job({**LISTED, "credit": "chunk-gains"}, {**SMALL, "prompts_per_iteration": 2}),
    "guided-sharded": Job(CHUNK_WS, SHARDED, cfg_scale=2.0, cfg_passes=2),
    "guided-conditional": Job(CHUNK_WS, {**SHARDED, **CONDITIONAL}, cfg_scale=2.0, cfg_passes=2),
    "hybrid-sgd": Job(CHUNK_WS, {**ONE_UPDATE, "hybrid_sharding": True}, sgd=True, apart=True),
}
"""The same items in other batches, whose rounding differs."""

CAST = {"sharded-cast": Job(CHUNK_WS, {**SHARDED, "kl_coef": 0.5}, dtype="bfloat16")}
"""Float32 weights that two processes gather in bfloat16, and that one process casts in each operation."""

ALIKE = SAME_BATCHES | OTHER_BATCHES
PAIR = {
    **{name: replace(job, folder=name) for name, job in (ALIKE | CAST).items()},
    "writers": Job(CHUNK_WS, {**SMALL, "heldout": {**BEST, "keep_best": True}}, "writers", own_folder=True),
    "odd": Job(CHUNK_WS, {**SMALL, "prompts_per_iteration": 2, "group_size": 3}, "odd"),
    "stopped": Job(CHUNK_WS, {**SMALL, "checkpoint_every": 2}, "stopped", stop_at=12),
    "resumed": Job(CHUNK_WS, {**SMALL, "checkpoint_every": 2}, "stopped"),
    "sharded-stopped": Job(CHUNK_WS, {**SHARDED, "kl_coef": 0.5}, "sharded-stopped", stop_at=21),
    "sharded-resumed": Job(CHUNK_WS, {**SHARDED, "kl_coef": 0.5}, "sharded-stopped"),
    "twos": Job(CHUNK_WS, TWOS, "twos"),
    "away": Job(CHUNK_WS, {**TWOS, "reward_away_seconds": 0.3}, "away", away=range(6, 100)),
    "back": Job(CHUNK_WS, TWOS, "away"),
    "away-shortly": Job(CHUNK_WS, TWOS, "away-shortly", away=range(6, 7)),
    "late": Job(CHUNK_WS, LATE, "late", frozen=1),
    "never-late": Job(CHUNK_WS, LATE, "never-late", frozen=0),
}
"""Jobs of two processes, in this order."""

RARE = {
    "branching",
    "sharded-half",
    "global",
    "chunk-size",
    "sgd",
    "split-branches",
    "sharded-uneven",
    "awm",
    "nft",
    "shared-noise",
    "gains",
    "nft-sharded",
    "guided-sharded",
    "guided-conditional",
    "hybrid-sgd",
    "lora",
    "guided",
    "sharded-cast",
    "split-groups",
    "away-shortly",
    "adaptive",
    "stopped",
    "resumed",
}
"""Jobs of slow tests: settings whose parts the others have in other combinations."""


def each(names: Iterable[str]) -> list[Any]:
    """Parameters of a test."""
    return [pytest.param(name, marks=pytest.mark.slow if name in RARE else ()) for name in names]


@dataclass(frozen=True)
class Pair:
    """Results of jobs in two processes; the usual and the rare ones are each done when they are first asked for."""

    root: Path
    do: Callable[[bool], None]

    def __call__(self, name: str, rank: int = 0) -> Seen:
        self.do(name in RARE)
        return result(self.root, name, rank)

    @property
    def folder(self) -> Path:
        """What the usual jobs left."""
        self.do(False)
        return self.root


@dataclass(frozen=True)
class Alone:
    """Result of a job in one process; computed once."""

    folder: Path
    do: Callable[[str], Seen]

    def __call__(self, name: str) -> Seen:
        return self.do(name)


@pytest.fixture(scope="module")
def pair(prompts: PromptSet, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("pair")

    def run(rare: bool) -> None:
        run_pair({name: job for name, job in PAIR.items() if (name in RARE) == rare}, prompts, folder)

    return Pair(folder, cache(run))


@pytest.fixture(scope="module")
def alone(prompts: PromptSet, tmp_path_factory: pytest.TempPathFactory) -> Alone:
    """The same job by one process, once."""
    folder = tmp_path_factory.mktemp("alone")
    return Alone(folder, cache(lambda name: do(PAIR[name], prompts, folder)))


def distance(a: Tensor | None, b: Tensor | None) -> float:
    """Relative difference of a from b."""
    assert a is not None
    assert b is not None
    return float((a - b).norm() / b.norm())


def untimed(seen: Seen) -> list[MetricRow]:
    """The metrics but for those that a clock gave."""
    return [row for row in seen.rows if not row[1].startswith(("seconds", "rate"))]


def alike(one: Seen, first: Seen) -> bool:
    """Whether metrics agree up to rounding, without those that measure rounding or time."""
    kept = [row for row in untimed(one) if not row[1].startswith("fidelity")]
    found = {(iteration, metric): value for iteration, metric, value in first.rows}
    return [value for _, _, value in kept] == pytest.approx([found[row[:2]] for row in kept], rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("name", each(ALIKE | CAST))
def test_two_processes_find_the_gradient_of_one(name, pair, alone):
    """Weights that are gathered in bfloat16 give it at its resolution."""
    one, first, second = alone(name), pair(name, 0), pair(name, 1)
    assert first.error == second.error == ""
    for seen in (first, second):
        assert distance(seen.gradient, one.gradient) < (2**-8 if name in CAST else 1e-5)
    assert [a + b for a, b in zip(first.items, second.items, strict=True)] == one.items
    assert first.has_weights_of(second)
    assert first.sizes == second.sizes == one.sizes
    if name in CAST:
        assert torch.equal(first.gradient, second.gradient)
        assert {weight.dtype for weight in first.weights.values()} == {torch.float32}
    else:
        assert alike(one, first)


@pytest.mark.parametrize("name", each(["following", "branching", "sgd", "sharded-sgd", "hybrid-sgd"]))
def test_two_processes_move_the_weights_as_one(name, pair, alone):
    """AdamW where the passes are the same; plain SGD where they round differently.

    AdamW divides a gradient by its own size. Where it is near 0, its rounding moves a weight by the learning rate.
    """
    assert distance(pair(name).moved, alone(name).moved) < 1e-5


@pytest.mark.parametrize(
    ("settings", "without"), [pytest.param({}, "weighted", marks=pytest.mark.slow), (CONDITIONAL, "guided")]
)
def test_guidance_in_two_passes_has_the_gradient_of_one(settings, without, alone, prompts, tmp_path):
    """Of both parts or with a constant one; that of `without` is another."""
    job = replace(PAIR["guided"], train={**SMALL, **settings})
    one, two = (do(replace(job, folder=f"{passes}", cfg_passes=passes), prompts, tmp_path) for passes in (1, 2))
    assert distance(two.gradient, one.gradient) < 1e-5
    assert distance(alone(without).gradient, one.gradient) > 0.1


def test_some_updates_leave_one_process_with_fewer_passes(pair):
    """Or the passes that fill up would not be tested."""
    items = zip(pair("sharded-lora", 0).items, pair("sharded-lora", 1).items, strict=True)
    assert any(-(-a // 3) != -(-b // 3) for a, b in items)


def test_only_the_main_process_writes(pair):
    assert pair("writers", 0).error == pair("writers", 1).error == ""
    folder = pair.folder / "writers"
    names = {path.relative_to(folder).parts[1] for path in folder.rglob("*") if path.is_file()}
    assert {path.name for path in folder.iterdir()} == {"0"}
    assert names >= {"best.safetensors", "logs", "iteration-000002"}


def test_trajectories_that_cannot_be_shared_out_are_refused_before_any_work(pair):
    for rank in range(2):
        assert pair("odd", rank).error == (
            "ConfigError: train.prompts_per_iteration / train.updates_per_iteration * train.group_size (with "
            "branches, divided by their children): must be divisible by the number of processes 2, got 3. Set "
            "CHUNK_GRPO_PROCESSES to a divisor."
        )
        assert pair("odd", rank).looks == 0


@pytest.mark.slow  # spread weights are stopped and resumed in the default tier
def test_stop_of_one_process_stops_both_and_run_resumes(pair):
    for rank in range(2):
        stopped, resumed, whole = pair("stopped", rank), pair("resumed", rank), pair("weighted", rank)
        assert stopped.error.startswith("TransientError: stopped after iteration 0 of 2; kept in ")
        assert len(stopped.items) == 2  # the second one was given up
        assert resumed.error == ""
        assert resumed.has_weights_of(whole)
    assert untimed(pair("resumed")) == untimed(pair("weighted"))


@pytest.mark.slow
def test_a_stop_within_an_iteration_is_resumed_by_as_many_processes(pair, prompts, tmp_path):
    assert pair("stopped").error
    shutil.copytree(pair.root / "stopped-left", tmp_path / "stopped")
    found = do(PAIR["resumed"], prompts, tmp_path)
    assert found.error.startswith(
        "ConfigError: the run was stopped within iteration 1 with 2 processes, and now has 1: start as many as before"
    )


def test_a_scorer_that_is_away_in_one_process_costs_none_its_work(pair):
    """It is away from the second batch of iteration 2 on, in process 1; the last checkpoint would be after 10."""
    for rank in range(2):
        away, back, whole = pair("away", rank), pair("back", rank), pair("twos", rank)
        assert re.fullmatch(
            r"TransientError: scorer shapes-graded: no answer for 0\.[0-9] s, after 2 attempts; the last failed with "
            r"ConnectionError: away at call 7\. No score was made up\. Run the same command again when the scorer "
            r"answers: what is done is kept\. Stopped after iteration 1 of 2; kept in away/iteration-000001\. Run the "
            r"same command again; training resumes from there\.",
            away.error,
        )
        assert back.error == ""
        assert back.has_weights_of(whole)
        assert untimed(back) == untimed(whole)
    (left,) = (pair.folder / "away-left").glob("iteration-*")
    extra = read_state(left)["extra"]
    assert [len(batch["finals"]) for own in extra["sampled"] for batch in own] == [2, 2, 2, 2]
    assert extra["unfinished"] is None


@pytest.mark.slow
def test_a_scorer_that_is_away_shortly_is_waited_for_by_both(pair):
    for rank in range(2):
        shortly, whole = pair("away-shortly", rank), pair("twos", rank)
        assert shortly.error == ""
        assert shortly.has_weights_of(whole)


def test_the_main_processs_clock_decides_for_both_when_to_save(pair):
    """Of the two jobs, one has a clock that stands still in process 1, the other one in the main process."""
    for name, saved in (("late", [1, 2]), ("never-late", [2])):
        for rank in range(2):
            seen = pair(name, rank)
            assert seen.error == ""
            assert [n for n, metric, _ in seen.rows if metric == "seconds_checkpoint"] == saved


@pytest.mark.parametrize("name", each(ALIKE | CAST))
def test_a_process_holds_all_weights_or_its_part_of_them(name, pair):
    held = [pair(name, rank).held for rank in range(2)]
    if PAIR[name].train.get("shard_weights") and not PAIR[name].apart:
        assert held == pytest.approx([0.5, 0.5], abs=0.02)
        assert sum(held) == pytest.approx(1)
    else:
        assert held == [1, 1]


def test_spread_weights_are_averaged_and_saved_whole(pair, alone):
    """The average is half way to the weights, and SGD moves both by much more than their rounding."""
    one, policies = alone("sharded-sgd"), Path("sharded-sgd/policies")
    assert one.moved is not None
    saved = load_file(pair.folder / policies / "transformer" / "diffusion_pytorch_model.safetensors")
    moved = flat({name: saved[name] for name in one.weights}) - (flat(one.weights) - one.moved)
    assert distance(moved, one.moved / 2) < 1e-5
    best = [
        flat(load_file(folder / policies / "best/diffusion_pytorch_model.safetensors"))
        for folder in (pair.folder, alone.folder)
    ]
    assert distance(*best) < 1e-5


def test_spread_weights_are_stopped_and_resumed_to_the_same_bits(pair):
    for rank in range(2):
        stopped, resumed, undisturbed = (pair(name, rank) for name in ("sharded-stopped", "sharded-resumed", "sharded"))
        assert stopped.error.startswith("TransientError: stopped after iteration 1 of 2; kept in ")
        assert resumed.error == ""
        assert resumed.has_weights_of(undisturbed)
        assert untimed(resumed) == untimed(undisturbed)
    (left,) = (pair.folder / "sharded-stopped-left").glob("iteration-000001*")
    assert {path.name for path in left.glob("part-*")} == {"part-0.safetensors", "part-1.safetensors"}
    files = [sorted((pair.folder / name / "policies").rglob("*.*")) for name in ("sharded-stopped", "sharded")]
    assert len(files[0]) == len(files[1]) == 4
    assert all(a.read_bytes() == b.read_bytes() for a, b in zip(*files, strict=True))


def test_a_checkpoint_of_spread_weights_is_resumed_by_one_process(pair, alone, prompts, tmp_path):
    shutil.copytree(pair.folder / "sharded-stopped-left", tmp_path / "sharded-stopped")
    found = do(PAIR["sharded-resumed"], prompts, tmp_path)
    assert found.error == ""
    assert len(found.items) == 2  # those of the second iteration
    assert alike(alone("sharded"), found)
