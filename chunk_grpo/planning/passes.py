"""Evaluations of the network in an iteration: states (images or items) and passes (calls), by purpose.

B images, S steps, N = S - 1 noisy ones, U updates. Numbers are those of one process; a draw of chunks is counted at its
mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from chunk_grpo.config import AdaptivePlan, GuidedPlan, ListedPlan
from chunk_grpo.config.models import EqualPlan, PlanParams
from chunk_grpo.config.resolved import ResolvedVariant, resolved_variant
from chunk_grpo.planning.settings import Settings, heldout_images


@dataclass(frozen=True)
class Count:
    """Evaluations of one purpose."""

    states: float
    """Images or items whose velocity is computed."""
    passes: float
    """Calls of the network."""


@dataclass(frozen=True)
class Chunks:
    """Chunks from which an update draws, of one trajectory."""

    sizes: tuple[float, ...]
    """Steps of each candidate; their mean size where the plan follows from a profile."""
    drawn: int
    """Number of drawn chunks."""
    is_exact: bool
    """Whether the sizes are known and drawn alike, so that the mean of the items is exact."""

    @property
    def items(self) -> float:
        """Mean number of trained steps: drawn * mean size."""
        return self.drawn * sum(self.sizes) / len(self.sizes)

    @property
    def range(self) -> tuple[float, float]:
        """Items with the smallest and with the largest chunks drawn."""
        ordered = sorted(self.sizes)
        return sum(ordered[: self.drawn]), sum(ordered[-self.drawn :])


@dataclass(frozen=True)
class Iteration:
    """Evaluations of an iteration by one process."""

    rows: int
    """Images of this process."""
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
    """One held-out evaluation, of which every process has its share."""
    chunks: Chunks
    """Chunks of a trajectory."""

    @property
    def forwards(self) -> float:
        """States of an iteration whose velocity is computed, without held-out evaluations."""
        counts = (self.rollout, self.old_log_probs, self.ratio, self.update, self.reference)
        return sum(count.states for count in counts)


def iteration(settings: Settings, variant: str) -> Iteration:
    """Count an iteration of a variant.

    rollout         B S states, less those that images with a common start share
    old_log_probs   items of all updates but the first, with values of the forward process of all updates
    ratio           items of chunks larger than a micro-batch, of all updates but the first
    update          items of all updates, forward and backward
    reference       items of all updates, if the KL coefficient is above 0
    """
    train, own = settings.params.train, resolved_variant(settings.params, variant)
    images = train.prompts_per_iteration * train.group_size // settings.processes
    points = 1 if own.branching is None else own.branching.points
    rows = images * points
    chunks = chunks_of(settings, own)
    later = train.updates_per_iteration - 1
    again = later if train.old_log_probs == "training" else 0
    if own.likelihood != "transition":
        again = train.updates_per_iteration
    rows_of_update = rows / train.updates_per_iteration
    divided, whole = packed(settings, own, chunks, rows_of_update)
    one = Count(rows_of_update * chunks.items, divided.passes + whole.passes)
    return Iteration(
        rows=rows,
        rollout=_rollout(settings, own, images),
        old_log_probs=_times(one, again),
        ratio=_times(divided, 0 if own.likelihood == "nft" else later),
        update=_times(one, train.updates_per_iteration),
        reference=_times(one, train.updates_per_iteration if has_reference(settings, variant) else 0),
        heldout=_heldout(settings),
        chunks=chunks,
    )


def has_reference(settings: Settings, variant: str) -> bool:
    """Whether the objective has a KL divergence, or gets one from the controller when a held-out score falls."""
    own = resolved_variant(settings.params, variant)
    return own.kl_coef > 0 or own.controlled


def chunks_of(settings: Settings, own: ResolvedVariant) -> Chunks:
    """Candidates of a trajectory, and int(K * fraction) of them drawn (Eq. 16)."""
    steps = settings.params.sampling.num_sde_steps
    if own.branching is not None or own.window is not None:
        # Single steps: the one at which an image branched, or those of the window.
        number = 1 if own.window is None else own.window.num_steps
        return Chunks((1.0,) * number, max(1, int(number * own.fraction)), True)
    plan = settings.params.chunks.plans[own.plan]
    sizes = _sizes(plan, steps)
    if own.train_chunks is not None:
        sizes = tuple(sizes[number] for number in own.train_chunks)
    known = not isinstance(plan, (GuidedPlan, AdaptivePlan)) or len(sizes) == 1
    is_exact = (known and own.selection == "uniform") or len(set(sizes)) == 1
    return Chunks(sizes, max(1, int(len(sizes) * own.fraction)), is_exact and known)


def _sizes(plan: PlanParams, steps: int) -> tuple[float, ...]:
    """Chunk sizes; a plan from a profile counts as K equal chunks."""
    if isinstance(plan, ListedPlan):
        return tuple(float(size) for size in plan.sizes)
    if isinstance(plan, EqualPlan):
        whole, rest = divmod(steps, plan.chunk_size)
        return (float(plan.chunk_size),) * whole + ((float(rest),) if rest else ())
    count = plan.chunk_count(steps)
    return (steps / count,) * count


def packed(settings: Settings, own: ResolvedVariant, chunks: Chunks, rows: float) -> tuple[Count, Count]:
    """Micro-batches of an update: of chunks larger than one, and of the others, as training/packing.py packs them.

    Each candidate is drawn in rows * drawn / candidates of the rows. Chunks are packed in order of decreasing size, and
    a chunk that fits is never divided.
    """
    size, share = settings.micro_batch, chunks.drawn / len(chunks.sizes)
    if own.objective == "step" or own.branching is not None or own.window is not None:
        return Count(0, 0), Count(rows * chunks.items, math.ceil(rows * chunks.items / size))
    large = rows * share * sum(steps for steps in chunks.sizes if steps > size)
    divided = Count(large, math.ceil(large / size))
    small = [steps for steps in sorted(chunks.sizes, reverse=True) if steps <= size]
    return divided, Count(rows * share * sum(small), _batches(small, rows * share, size))


def _batches(sizes: Sequence[float], rows: float, size: int) -> int:
    """Micro-batches of `rows` chunks of each size, filled in order without dividing a chunk."""
    batches, room = 0, 0.0
    for steps in sizes:
        for _ in range(round(rows)):
            if steps > room + 1e-9:
                batches, room = batches + 1, float(size)
            room -= steps
    return batches


def _rollout(settings: Settings, own: ResolvedVariant, rows: int) -> Count:
    """Rollout of `rows` images, with branches of `rows` images at each branch point.

    Without branches: B S states in ceil(B / batch) * S passes; images of a prompt with the same start noise share the
    first state in each batch. With branches (TempFlow-GRPO): runs * S states, and W children at each of A points that
    take the remaining steps, (N + 1) / 2 of them on average.
    """
    train, sampling = settings.params.train, settings.params.sampling
    S, N, batch = sampling.num_steps, sampling.num_sde_steps, settings.rollout_batch
    if own.branching is not None:
        runs = rows // own.branching.children
        calls = math.ceil(runs / max(1, batch // own.branching.children))
        after = own.branching.points * (N + 1) / 2
        return Count(runs * S + runs * own.branching.children * after, calls * (S + after))
    calls = math.ceil(rows / batch)
    first = rows
    if train.same_noise_in_group:
        first = sum(
            len({row // train.group_size for row in range(start, min(start + batch, rows))})
            for start in range(0, rows, batch)
        )
    return Count(rows * (S - 1) + first, calls * S)


def _heldout(settings: Settings) -> Count:
    """One held-out evaluation: prompts * images * S states, divided among the processes."""
    S = settings.params.sampling.num_steps
    rows = math.ceil(heldout_images(settings.params) / settings.processes)
    return Count(rows * S, math.ceil(rows / settings.rollout_batch) * S)


def _times(count: Count, number: int) -> Count:
    return Count(number * count.states, number * count.passes)
