"""The loss of an update, in the paper's order.

`UpdateBatch` has the rollout's values. `TransitionValues` makes the forward pass and finds the log-probability of each
sampled step. `Update` goes on with the chunks' ratios, the clipped objective and its gradient: exact, with the memory
of single steps. The formulas are in core/objective.py.

The objective's gradient is a weighted sum of the gradients of single-step log-probabilities. The weights depend only on
the chunk's ratio. A first pass without gradients computes the ratios; a second pass back-propagates (sample, step)
items, one micro-batch at a time. A chunk that fits into a micro-batch needs no first pass: its ratio is known after the
forward pass of that micro-batch. In the first update after a rollout all ratios are 1, and no chunk needs one. Both
passes must be the same computation: same dtype, no dropout. A chunk on which the objective does not depend has neither
pass: without a KL term, images of equal rewards have an advantage of 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from chunk_grpo.core.assignment import TrainedChunks
from chunk_grpo.core.choices import LIKELIHOODS, Likelihood, implemented, needs_old_means
from chunk_grpo.core.forward_process import optimality
from chunk_grpo.core.log_prob import gaussian_kl, gaussian_log_prob
from chunk_grpo.core.objective import Bounds, Terms, clipped_chunks, gradient_coefficients
from chunk_grpo.core.ratios import NORMALISED, chunk_ratio
from chunk_grpo.core.types import Transition
from chunk_grpo.families.base import ConditioningRows
from chunk_grpo.training.forward_values import MatchingValues, NftValues, PairsOfItems, PolicyVelocity
from chunk_grpo.training.method import Method
from chunk_grpo.training.packing import pack, with_slope
from chunk_grpo.training.processes import Processes
from chunk_grpo.training.stopping import Check


@dataclass(frozen=True)
class Policies:
    """The trained policy, and the reference policy, which is required if `kl_coef` is above 0."""

    policy: PolicyVelocity
    reference: PolicyVelocity | None = None


@dataclass(frozen=True)
class UpdateBatch:
    """Training data of one update: latents and prompts on the policy's device, everything else on the CPU."""

    states: Tensor
    """States of whole trajectories or parts of them [B, Z + 1, L, D]."""
    first_step: Tensor
    """int64 [B], the step that begins at `states[:, 0]`."""
    conditioning: ConditioningRows
    """Prompts of the B trajectories; a micro-batch's are read and sent to the device for its passes."""
    advantages: Tensor
    """Advantages [B], or [B, Kmax] with a reward per chunk."""
    old_log_probs: Tensor
    """Log-probabilities [B, S - 1] under the sampling policy."""
    old_means: Tensor | None
    """Means of the noisy steps [B, Z or Z - 1, L, D], or the sampling policy's velocities at the states of the
    forward process; None if the method needs neither."""
    chunks: TrainedChunks
    """Trained chunks and their weights."""
    finals: Tensor | None = None
    """Final latents [B, L, D]; None without a forward process."""
    pairs: PairsOfItems | None = None
    """Time and noise of items of the forward process; None without one."""


class StepValues(Protocol):
    """What stands for log p of (sample, step) items. Rows [n] and steps [n] name the items."""

    has_ratio: bool
    """Whether the objective has the ratio exp(log_prob - old); else `log_prob` itself is maximised."""
    drift: Tensor | None
    """Divergence from the sampling policy [B, S - 1], at the items with a `log_prob`; None: not needed."""

    def old(self, kept: Tensor) -> Tensor:
        """Values [B, S - 1] under the sampling policy, from the `old_log_probs` [B, S - 1] that are kept."""

    def predict(self, policy: PolicyVelocity, rows: Tensor, steps: Tensor) -> Any:
        """Forward pass: a policy's prediction for each item."""

    def log_prob(self, prediction: Any, rows: Tensor, steps: Tensor) -> Tensor:
        """Value [n] of each item."""

    def sampled_log_prob(self, prediction: Any, rows: Tensor, steps: Tensor) -> Tensor:
        """`old_log_probs` [n] of each item, from the sampling policy's prediction."""

    def kl(self, prediction: Any, reference: Any) -> Tensor:
        """Divergence [n] of a prediction from the reference policy's one for the same items."""


class TransitionValues:
    """Log-probabilities of the sampled transitions, Eq. (6), or their normalised log-ratios."""

    has_ratio = True

    def __init__(self, method: Method, batch: UpdateBatch) -> None:
        """Check that the batch has the old means, if the method needs them.

        Raises:
            ValueError: It has none.
        """
        variant = method.variant
        self._normalised = NORMALISED[variant.ratio_norm]
        if needs_old_means(variant.ratio_norm, variant.trust_region) and batch.old_means is None:
            raise ValueError(
                f"ratio_norm {variant.ratio_norm} with trust_region {variant.trust_region} needs the means of the "
                "old policy: roll out with keep_means"
            )
        self._grid, self._batch, self._kept = method.grid, batch, batch.old_log_probs
        self.drift = torch.zeros_like(self._kept) if variant.trust_region == "divergence" else None

    def old(self, kept: Tensor) -> Tensor:
        """The log-probabilities; 0 if the value is a log-ratio."""
        self._kept = kept
        return kept if self._normalised is None else torch.zeros_like(kept)

    def predict(self, policy: PolicyVelocity, rows: Tensor, steps: Tensor) -> Transition:
        """Forward pass: the Gaussian of each item's step, with mean [n, L, D]."""
        batch, grid = self._batch, self._grid
        x = batch.states[rows, steps - batch.first_step[rows]]  # [n, L, D]
        t, t_next = grid.times[steps], grid.times[steps + 1]
        velocity = policy(x, t.to(x), batch.conditioning.rows(rows).to(x.device))
        return grid.sampler.transition(x, velocity, t, t_next, grid.noise[steps])

    def log_prob(self, prediction: Transition, rows: Tensor, steps: Tensor) -> Tensor:
        """Log-probability, or the normalised log-ratio, which is 0 under the old policy.

        Keeps each item's divergence from the old policy if it bounds the update.
        """
        batch, log_probs = self._batch, self.sampled_log_prob(prediction, rows, steps)
        if batch.old_means is None:
            return log_probs
        old_mean = batch.old_means[rows, steps - batch.first_step[rows]]  # [n, L, D]
        drift = gaussian_kl(prediction.mean, old_mean, prediction.std)  # [n]
        if self.drift is not None:
            self.drift[rows, steps] = drift.detach().cpu().to(self.drift)
        if self._normalised is None:
            return log_probs
        columns = (log_probs, self._kept[rows, steps], drift, prediction.std.expand(len(rows)))
        return self._normalised(*(column.to(log_probs).unsqueeze(1) for column in columns)).squeeze(1)

    def sampled_log_prob(self, prediction: Transition, rows: Tensor, steps: Tensor) -> Tensor:
        """Log-probability of the sampled step."""
        after = self._batch.states[rows, steps - self._batch.first_step[rows] + 1]  # [n, L, D]
        return gaussian_log_prob(after, prediction.mean, prediction.std)

    def kl(self, prediction: Transition, reference: Transition) -> Tensor:
        """KL divergence of two Gaussians with the same standard deviation."""
        return gaussian_kl(prediction.mean, reference.mean, prediction.std)


def _matching(method: Method, batch: UpdateBatch) -> MatchingValues:
    """Values of AWM."""
    finals, pairs = _noised(method, batch)
    return MatchingValues(batch.conditioning, finals, pairs)


def _nft(method: Method, batch: UpdateBatch) -> NftValues:
    """Values of DiffusionNFT."""
    finals, pairs = _noised(method, batch)
    if batch.old_means is None:
        raise ValueError("likelihood nft needs room for the old velocities: roll out with keep_means")
    if batch.advantages.ndim != 1:
        raise ValueError(f"likelihood nft needs advantages [B], got {tuple(batch.advantages.shape)}")
    return NftValues(
        batch.conditioning,
        finals,
        pairs,
        velocities=batch.old_means,
        first_step=batch.first_step,
        good=optimality(batch.advantages, method.advantage_clip),
        beta=method.variant.nft_beta,
    )


def _noised(method: Method, batch: UpdateBatch) -> tuple[Tensor, PairsOfItems]:
    """Final latents, and times and noise of the forward process."""
    if batch.finals is None or batch.pairs is None:
        raise ValueError(
            f"likelihood {method.variant.likelihood} needs the final latents and the items' times and noise"
        )
    return batch.finals, batch.pairs


VALUES: Mapping[Likelihood, Callable[[Method, UpdateBatch], StepValues]] = implemented(
    LIKELIHOODS, "training/update.py", {"transition": TransitionValues, "matching": _matching, "nft": _nft}
)
"""By choice: (method, batch) -> values that stand for log p. Raise ValueError if the batch lacks what they need."""


@dataclass(frozen=True)
class UpdateStats:
    """Statistics of one update over its n selected chunks and m trained items."""

    ratios: Tensor
    """Ratios of the selected chunks whose items were all trained, [n] or fewer."""
    chunk: Tensor
    """int64 [n], number of each selected chunk."""
    clipped: Tensor
    """Bool [n], whether clipping stopped the gradient of the chunk."""
    kl_sum: float
    """Sum over the items of the KL divergence from the reference policy."""
    steps: Tensor
    """int64 [m], step of each item."""
    log_prob_change: Tensor
    """New minus old log-probability of each item [m], from the pass with gradients."""
    by_step: Tensor
    """float64 [2, S - 1], number of selected items of each step, and of those whose chunk is clipped."""
    skipped: int = 0
    """Number of selected items that were not trained, because the objective does not depend on their chunk."""

    @classmethod
    def of_all(cls, parts: Sequence[UpdateStats]) -> UpdateStats:
        """Concatenate the statistics of one update from all processes."""
        return cls(
            ratios=torch.cat([part.ratios for part in parts]),
            chunk=torch.cat([part.chunk for part in parts]),
            clipped=torch.cat([part.clipped for part in parts]),
            kl_sum=sum(part.kl_sum for part in parts),
            steps=torch.cat([part.steps for part in parts]),
            log_prob_change=torch.cat([part.log_prob_change for part in parts]),
            by_step=torch.stack([part.by_step for part in parts]).sum(dim=0),
            skipped=sum(part.skipped for part in parts),
        )


class Update:
    """Computes the gradient of one update."""

    def __init__(
        self, policies: Policies, method: Method, batch: UpdateBatch, bounds: Bounds, micro_batch_size: int
    ) -> None:
        """Pack the items into micro-batches.

        Args:
            policies: Trained policy and reference.
            method: Settings of the variant.
            batch: Trajectories, advantages and trained chunks.
            bounds: Clip range and KL coefficient of this update.
            micro_batch_size: Largest number of items in one forward and backward pass.

        Raises:
            ValueError: A KL coefficient without a reference policy, or the batch lacks what the method needs.
        """
        if bounds.kl_coef > 0 and policies.reference is None:
            raise ValueError(f"kl_coef {bounds.kl_coef} needs a reference policy")
        self._values = VALUES[method.variant.likelihood](method, batch)
        self._policy, self._batch, self._bounds = policies.policy, batch, bounds
        self._reference = policies.reference if bounds.kl_coef > 0 else None
        self._old = self._values.old(batch.old_log_probs)
        # With a ratio of 1 nothing is clipped: a chunk without a slope here has none at any ratio.
        by_log_prob, by_kl = self._coefficients(self._old)
        useful = with_slope(batch.chunks, (by_log_prob != 0) | (by_kl != 0))
        self._packing = pack(useful, micro_batch_size)
        sizes = batch.chunks.assignment.sizes
        self._skipped = int(sizes[batch.chunks.selected & ~useful.selected].sum())

    def accumulate_gradient(self, processes: Processes, *, on_policy: bool, check: Check) -> UpdateStats:
        """Add the gradient of the negative objective to the gradients of the policy's parameters.

        Paper: Eq. (13) and (14); the decomposition is in docs/equations.md.

        Args:
            processes: Processes of this training. The gradient is averaged over them.
            on_policy: Whether this is the first update after a rollout: ratios are 1 and are not computed.
            check: Called before each micro-batch; raises to abort.
        """
        values, new = self._values, self._old  # [B, S - 1]
        if not on_policy and values.has_ratio:  # ratios of the chunks that no micro-batch holds
            new = self._evaluated(new, values.log_prob, self._packing.divided, processes, check)
        by_log_prob, by_kl = self._coefficients(new)
        divergences: list[Tensor] = []
        changes: list[Tensor] = []
        rounds = list(self._rounds(self._packing.all, processes))
        for number, (rows, steps, counts) in enumerate(rounds):
            check()
            with processes.accumulating(last=number == len(rounds) - 1):
                # The forward pass from the rollout's states, and log p of the steps that were sampled: Eq. (6).
                prediction = values.predict(self._policy, rows, steps)
                log_prob = values.log_prob(prediction, rows, steps)  # [n]
                # The ratios of the chunks, Eq. (14), and the clipped objective, Eq. (13): its slope at each step.
                if not on_policy and counts:
                    # For items of `packing.divided` this repeats the value of the first pass.
                    new[rows, steps] = log_prob.detach().cpu()
                    by_log_prob, by_kl = self._coefficients(new)
                loss = -(by_log_prob[rows, steps].to(log_prob) * log_prob).sum()
                if self._reference is not None:
                    with torch.no_grad():
                        anchor = values.predict(self._reference, rows, steps)
                    kl = values.kl(prediction, anchor)  # [n]
                    loss = loss - (by_kl[rows, steps].to(kl) * kl).sum()
                    divergences += [kl.detach().sum()] if counts else []
                # The gradient.
                (loss if counts else 0 * loss).backward()
            if counts:
                changes.append(log_prob.detach())
        kl_sum = sum(torch.stack(divergences).tolist()) if divergences else 0.0
        rows, steps = torch.cat(self._packing.all).unbind(dim=1)
        return self._statistics(new, kl_sum, steps, torch.cat(changes).cpu() - self._old[rows, steps])

    def on_policy(self, processes: Processes) -> tuple[Tensor, Tensor]:
        """New and old values [n] of a micro-batch's items, while the policy is the one that sampled.

        It runs the graph of `accumulate_gradient`, since each graph rounds in its own way, and leaves no gradient.
        """
        rows, steps = self._packing.all[0].unbind(dim=1)
        with processes.accumulating(last=False):
            log_prob = self._values.log_prob(self._values.predict(self._policy, rows, steps), rows, steps)  # [n]
        return log_prob.detach(), self._old[rows, steps]

    def reevaluate_old(self, processes: Processes, check: Check) -> Tensor:
        """Recompute the old log-probabilities in this update's micro-batches, with the sampling policy's weights.

        Args:
            processes: Processes of this training.
            check: Called before each micro-batch; raises to abort.

        Returns:
            The new old log-probabilities [B, S - 1]. Steps without an item keep the rollout's values.
        """
        kept = self._batch.old_log_probs
        kept = self._evaluated(kept, self._values.sampled_log_prob, self._packing.all, processes, check)
        self._old = self._values.old(kept)
        return kept

    @torch.no_grad()
    def _evaluated(
        self,
        default: Tensor,
        value_of: Callable[[Any, Tensor, Tensor], Tensor],
        parts: Sequence[Tensor],
        processes: Processes,
        check: Check,
    ) -> Tensor:
        """Values [B, S - 1] under the current policy at the items of `parts`, found from their predictions.

        Other steps have the `default` [B, S - 1].
        """
        values = default.clone()
        for rows, steps, counts in self._rounds(parts, processes):
            check()
            found = value_of(self._values.predict(self._policy, rows, steps), rows, steps)
            if counts:
                values[rows, steps] = found.cpu()
        return values

    def _rounds(self, parts: Sequence[Tensor], processes: Processes) -> Iterator[tuple[Tensor, Tensor, bool]]:
        """Rows [n] and steps [n] of each of this process's micro-batches int64 [n, 2], and whether they count.

        All processes must perform every pass of a sharded network. A process with fewer micro-batches than another
        therefore repeats an item that does not count.
        """
        for number in range(processes.largest(len(parts))):
            counts = number < len(parts)
            part = parts[number] if counts else self._packing.all[0][:1]
            yield part[:, 0], part[:, 1], counts

    def _coefficients(self, new: Tensor) -> tuple[Tensor, Tensor]:
        """Slopes [B, S - 1] of the clipped objective by each log-probability and each KL divergence.

        They are valid where the log-probabilities `new` [B, S - 1] are the trained policy's.
        """
        terms = self._terms
        if not self._values.has_ratio:
            # A ratio of 1 and an advantage of 1: the gradient of the values themselves.
            new, terms = self._old, replace(terms, advantage=torch.ones_like(terms.advantage))
        return gradient_coefficients(new, terms, self._bounds)

    @property
    def _terms(self) -> Terms:
        return Terms(self._old, self._batch.advantages, self._batch.chunks, self._values.drift)

    def _statistics(self, new: Tensor, kl_sum: float, steps: Tensor, changes: Tensor) -> UpdateStats:
        chunks = self._batch.chunks
        ratios = chunk_ratio(new if self._values.has_ratio else self._old, self._old, chunks.assignment)
        clipped = clipped_chunks(ratios, self._terms, self._bounds)
        trained = torch.zeros(new.shape, dtype=torch.float64)  # [B, S - 1]
        trained[tuple(torch.cat(self._packing.all).T)] = 1
        is_whole = chunks.assignment.means(trained) == 1  # [B, Kmax]
        counted = (chunks.selected, chunks.selected & clipped)
        by_step = [chunks.assignment.to_steps(of_chunks.double()).sum(dim=0) for of_chunks in counted]
        return UpdateStats(
            ratios=ratios[chunks.selected & is_whole],
            chunk=chunks.selected.nonzero()[:, 1],
            clipped=clipped[chunks.selected],
            kl_sum=kl_sum,
            steps=steps,
            log_prob_change=changes,
            by_step=torch.stack(by_step),
            skipped=self._skipped,
        )
