"""A few iterations of the trainer on a network of one weight, which count what each iteration evaluates.

The trainer, its draws and its micro-batches are the real ones, so every method is counted without a line about it here.
It runs twice, the second time with mirrored draws, so that the counts of both have the mean of all draws, or nearly so.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

from chunk_grpo.config import GuidedPlan, Params, PlanParams, SamplingParams, TrainParams, VariantParams
from chunk_grpo.core.chunk_sampling import chunk_weights
from chunk_grpo.core.chunking import ChunkPlan
from chunk_grpo.core.flow import time_grid
from chunk_grpo.families.base import Conditioning, Family
from chunk_grpo.families.prompts import PromptSet
from chunk_grpo.planning.counters import Count, Purpose, counting
from chunk_grpo.scorers.base import FloatArray, ScoreBatch
from chunk_grpo.scorers.reward import Reward
from chunk_grpo.training.method import make_method
from chunk_grpo.training.plans import build_plan
from chunk_grpo.training.processes import Processes
from chunk_grpo.training.run import RunPaths, TrainingData
from chunk_grpo.training.trainer import Trainer

IMAGES = 48
"""Least number of images of a process in each of the two runs, if the training has as many."""


@dataclass(frozen=True)
class IterationCounts:
    """Evaluations of one process in an iteration, a mean over draws."""

    rollout: Count
    """Sampling, without gradients."""
    old_log_probs: Count
    """Old log-probabilities in the update's batches (train.old_log_probs: training, AWM, DiffusionNFT)."""
    ratio: Count
    """Ratios of chunks that are larger than a micro-batch, from the second update on."""
    update: Count
    """Forward and backward passes."""
    reference: Count
    """Reference policy of the KL divergence."""
    heldout: Count
    """One held-out evaluation."""
    latents: int
    """Latents of an image that the trajectories hold: states, final latents, and means if they are needed."""
    predicted: int
    """Images that the rollouts predict before the last step, whose latents are kept until they are scored."""
    chunk_sizes: tuple[int, ...]
    """Steps of the chunks that may be drawn; of a flat profile, where the plan follows from one."""


def count_iteration(params: Params, variant: str, processes: int = 1) -> IterationCounts:
    """Train a network of one weight, and return what the first of several processes evaluates in an iteration.

    A profile is not known: guided plans have equal chunks here, and chunks are drawn uniformly. A controller's KL
    divergence counts from the start.
    """
    train, own = params.train, params.variants[variant]
    rows = train.prompts_per_iteration * train.group_size // processes
    iterations = min(train.iterations, math.ceil(IMAGES / rows))
    controller = train.heldout.controller
    alike: dict[str, Any] = {"selection": "uniform"}
    if own.controlled and controller is not None:
        alike["kl_coef"] = controller.kl_coef
    arguments = (
        own.model_copy(update=alike),
        params.chunks.plans[own.plan],
        params.sampling,
        train.model_copy(update=_plain(train, iterations)),
        tuple(params.rewards),
        min(train.heldout.num_prompts, params.prompts.eval_count),
        processes,
    )
    key = repr(arguments)
    if key not in _FOUND:
        _FOUND[key] = _counted(*arguments)
    return _FOUND[key]


_FOUND: dict[str, IterationCounts] = {}
"""Counts by arguments: variants that differ in what changes no count are trained once."""


def _plain(train: TrainParams, iterations: int) -> dict[str, Any]:
    """Values without an early end, and without what changes no count.

    That is parts on other devices, other packages, shards, adapters, compiled blocks and recomputed ones.
    """
    heldout = {"every": iterations, "scorers": (), "patience": None, "keep_best": False, "controller": None}
    return {
        "iterations": iterations,
        "checkpoint_every": iterations,
        "checkpoint_minutes": None,
        "heldout": train.heldout.model_copy(update=heldout),
        "optimizer": "adamw",
        "offload": (),
        "lora": None,
        "shard_weights": False,
        "hybrid_sharding": False,
        "compile": False,
        "gradient_checkpointing": False,
    }


def _counted(
    own: VariantParams,
    planned: PlanParams,
    sampling: SamplingParams,
    train: TrainParams,
    rewards: tuple[str, ...],
    heldout: int,
    processes: int,
) -> IterationCounts:
    profile = [1.0] * sampling.num_sde_steps
    plan = build_plan(planned, profile)
    if isinstance(planned, GuidedPlan):
        shorter, longer = divmod(len(profile), planned.num_chunks)
        plan = ChunkPlan((shorter + 1,) * longer + (shorter,) * (planned.num_chunks - longer))
    times = time_grid(sampling.num_steps, sampling.shift or 1.0)
    method = make_method(own, planned, sampling, train, plan, chunk_weights(profile, plan), times)
    data = TrainingData(_prompts(train.prompts_per_iteration), _prompts(heldout), _Scores(rewards))
    with counting(_Stub) as counters, _one_thread(), _one_picture(), redirect_stderr(io.StringIO()):
        for draws in (nullcontext(), _mirrored_draws()):
            with draws, TemporaryDirectory() as folder:
                paths = RunPaths(Path(folder), "dry run", Path(folder), "dry-run")
                family = cast(Family, _Stub())
                Trainer(family, data, method, train, 0, paths, _OneOf(processes)).run(lambda: False)

    def mean(purpose: Purpose, number: int = 2 * train.iterations) -> Count:
        count = counters.counts[purpose]
        return Count(count.states / number, count.passes / number, count.images / number)

    trajectories, rollout = counters.results["rollout"].trajectories, mean("rollout")
    latents = (trajectories.states, trajectories.finals, trajectories.means)
    allowed = range(plan.num_chunks) if own.train_chunks is None else own.train_chunks
    return IterationCounts(
        rollout=rollout,
        old_log_probs=mean("old"),
        ratio=mean("ratio"),
        update=mean("update"),
        reference=mean("reference"),
        heldout=mean("heldout", 4),  # before the first iteration and after the last
        latents=sum(each.numel() for each in latents if each is not None),
        predicted=round(rollout.images) - len(trajectories.finals),
        chunk_sizes=tuple(plan.sizes[number] for number in allowed),
    )


@contextmanager
def _one_thread() -> Iterator[None]:
    """Context in which torch uses one thread; several would wait for each other at each operation on a number."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _one_picture() -> AbstractContextManager[object]:
    """Context in which a held-out evaluation shows one picture: processes that do not exist add too many."""
    return patch("chunk_grpo.training.heldout.PICTURES_SHOWN", 1)


@contextmanager
def _mirrored_draws() -> Iterator[None]:
    """Context in which the same streams draw the opposite: an exponential's u as 1 - u, a permutation's last as first.

    Each draw keeps its distribution. Of chunks with equal weights those that would be drawn last are drawn first: with
    a fraction of one half each is drawn in one of both runs. A branch point k steps from the start is k from the end.
    """
    exponential, permutation = Tensor.exponential_, torch.randperm

    def mirrored(noise: Tensor, rate: float = 1.0, *, generator: torch.Generator | None = None) -> Tensor:
        u = torch.exp(-rate * exponential(noise, rate, generator=generator))
        return noise.copy_(-torch.log1p(-u) / rate)

    with (
        patch.object(Tensor, "exponential_", mirrored),
        patch.object(torch, "randperm", lambda n, **options: n - 1 - permutation(n, **options)),
    ):
        yield


def _prompts(count: int) -> PromptSet:
    names = [str(number) for number in range(count)]
    return PromptSet(names, names, [{}] * count, Conditioning({"text": torch.zeros(count, 1)}))


class _Stub:
    """A model whose latents are one number. Its velocity is the state times the only weight."""

    latent_shape = (1, 1)
    device = torch.device("cpu")

    def __init__(self) -> None:
        self.transformer = nn.Linear(1, 1, bias=False)

    def velocity(self, x: Tensor, t: Tensor, conditioning: Conditioning) -> Tensor:
        return cast(Tensor, self.transformer(x))

    def decode(self, latents: Tensor) -> Tensor:
        return torch.zeros(len(latents), 3, 2, 2)

    def prepare_training(self, *_: object) -> None:
        pass

    def use_network(self, network: nn.Module) -> None:
        pass

    def trainable_parameters(self) -> Iterator[nn.Parameter]:
        return self.transformer.parameters()

    def trainable_state(self) -> dict[str, Tensor]:
        return self.transformer.state_dict()

    def reference(self) -> _Stub:
        return _Stub()


class _Scores(Reward):
    """A reward that draws its values."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__({}, {})
        self.weights, self._drawn = dict.fromkeys(names, 1.0), np.random.default_rng(0)

    def scores(self, batch: ScoreBatch) -> dict[str, FloatArray]:
        return {name: self._drawn.random(len(batch.prompts)) for name in self.weights}


class _OneOf(Processes):
    """The first of several processes, of which the others do not exist: what it gathers is its own, several times."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._number = count

    @property
    def count(self) -> int:
        return getattr(self, "_number", 1)

    def wrap(self, network: nn.Module) -> nn.Module:
        return network

    def largest(self, number: int) -> int:
        return number

    def gather(self, items: list[Any]) -> list[Any]:
        return items * self.count

    def by_all(self, action: Any) -> list[Any]:
        return [action()] * self.count
