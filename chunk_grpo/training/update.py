"""The exact gradient of the clipped chunk objective with the memory of single steps.

The objective's gradient is a weighted sum of the gradients of single-step log-probabilities. The weights depend only on
the chunk's ratio. A first pass without gradients computes the ratios; a second pass back-propagates (sample, step)
items, one micro-batch at a time. A chunk that fits into a micro-batch needs no first pass: its ratio is known after the
forward pass of that micro-batch. In the first update after a rollout all ratios are 1, and no chunk needs one. Both
passes must be the same computation: same dtype, no dropout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from chunk_grpo.core.choices import RatioNorm, TrustRegion, needs_old_means
from chunk_grpo.core.log_prob import gaussian_kl, gaussian_log_prob
from chunk_grpo.core.objective import ClipRange, clipped_chunks, gradient_coefficients
from chunk_grpo.core.ratios import NORMALISED, chunk_ratio
from chunk_grpo.core.types import Transition
from chunk_grpo.families.base import Conditioning, ConditioningRows
from chunk_grpo.training.chunk_selection import TrainedChunks
from chunk_grpo.training.method import StepGrid
from chunk_grpo.training.packing import pack
from chunk_grpo.training.processes import Processes
from chunk_grpo.training.stopping import Check

PolicyVelocity = Callable[[Tensor, Tensor, Conditioning], Tensor]
"""(x [n, L, D], t [n], conditioning of n prompts) -> velocity [n, L, D]."""

ValueOfItems = Callable[[Transition, Tensor, Tensor], Tensor]
"""(transitions, rows [n], steps [n]) -> [n]."""


@dataclass(frozen=True)
class UpdateBatch:
    """Training data of one update: latents and prompts on the policy's device, everything else on the CPU.

    Attributes:
        states: States of whole trajectories or parts of them [B, Z + 1, L, D].
        first_step: int64 [B], the step that begins at `states[:, 0]`.
        conditioning: Prompts of the B trajectories; a micro-batch's are read and sent to the device for its passes.
        advantages: Advantages [B], or [B, Kmax] with a reward per chunk.
        old_log_probs: Log-probabilities [B, S - 1] under the sampling policy.
        old_means: Means of the noisy steps [B, Z or Z - 1, L, D]; None if neither ratio nor trust region needs them.
        chunks: Trained chunks and their weights.
    """

    states: Tensor
    first_step: Tensor
    conditioning: ConditioningRows
    advantages: Tensor
    old_log_probs: Tensor
    old_means: Tensor | None
    chunks: TrainedChunks


@dataclass(frozen=True)
class Objective:
    """Settings of the clipped objective.

    Attributes:
        clip_range: Half width of the ratio's trust region, above 0: one number, or a tensor [K].
        kl_coef: Weight of the KL divergence to the reference policy, at least 0.
        ratio_norm: Normalisation of the log-ratio.
        trust_region: Whether ratios are clipped, or divergences from the sampling policy are limited by `clip_range`.
    """

    clip_range: ClipRange
    kl_coef: float = 0.0
    ratio_norm: RatioNorm = "none"
    trust_region: TrustRegion = "clip"


@dataclass(frozen=True)
class UpdateStats:
    """Statistics of one update over its n selected chunks and m trained items.

    Attributes:
        ratios: Ratios of the selected chunks [n].
        chunk: int64 [n], number of the chunk of each ratio.
        clipped: bool [n], whether clipping stopped the gradient of the ratio.
        kl_sum: Sum over the items of the KL divergence from the reference policy.
        steps: int64 [m], step of each item.
        log_prob_change: New minus old log-probability of each item [m], from the pass with gradients.
    """

    ratios: Tensor
    chunk: Tensor
    clipped: Tensor
    kl_sum: float
    steps: Tensor
    log_prob_change: Tensor

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
        )


@dataclass(frozen=True)
class Policies:
    """The trained policy, and the reference policy, which is required if `kl_coef` is above 0."""

    policy: PolicyVelocity
    reference: PolicyVelocity | None = None


class Update:
    """Computes the gradient of one update."""

    def __init__(
        self,
        policies: Policies,
        grid: StepGrid,
        batch: UpdateBatch,
        objective: Objective,
        micro_batch_size: int,
    ) -> None:
        """Pack the items into micro-batches.

        Args:
            policies: Trained policy and reference.
            grid: Sampling grid of the rollouts.
            batch: Trajectories, advantages and trained chunks.
            objective: Clip range, KL coefficient and kind of ratio.
            micro_batch_size: Largest number of items in one forward and backward pass.

        Raises:
            ValueError: A KL coefficient without a reference policy, or no old means although they are needed.
        """
        if objective.kl_coef > 0 and policies.reference is None:
            raise ValueError(f"kl_coef {objective.kl_coef} needs a reference policy")
        self._normalised = NORMALISED[objective.ratio_norm]
        if needs_old_means(objective.ratio_norm, objective.trust_region) and batch.old_means is None:
            raise ValueError(
                f"ratio_norm {objective.ratio_norm} with trust_region {objective.trust_region} needs the means of the "
                "old policy: roll out with keep_means"
            )
        self._policy, self._grid, self._batch, self._objective = policies.policy, grid, batch, objective
        self._reference = policies.reference if objective.kl_coef > 0 else None
        self._packing = pack(batch.chunks, micro_batch_size)
        self._old = self._old_values()
        self._drift = torch.zeros_like(self._old) if objective.trust_region == "divergence" else None

    def accumulate_gradient(self, processes: Processes, *, on_policy: bool, check: Check) -> UpdateStats:
        """Add the gradient of the negative objective to the gradients of the policy's parameters.

        Paper: Eq. (13) and (14); the decomposition is in docs/equations.md.

        Args:
            processes: Processes of this training. The gradient is averaged over them.
            on_policy: Whether this is the first update after a rollout: ratios are 1 and are not computed.
            check: Called before each micro-batch; raises to abort.
        """
        new, packing = self._old, self._packing
        if not on_policy:
            new = self._evaluated(self._old, self._value, packing.divided, processes, check)
        by_value, by_kl = self._coefficients(new)
        divergences: list[Tensor] = []
        changes: list[Tensor] = []
        rounds = list(self._rounds(packing.all, processes))
        for number, (rows, steps, counts) in enumerate(rounds):
            check()
            with processes.accumulating(last=number == len(rounds) - 1):
                transition = self._transition(self._policy, rows, steps)
                value = self._value(transition, rows, steps)
                if not on_policy and counts:
                    # For items of `packing.divided` this repeats the value of the first pass.
                    new[rows, steps] = value.detach().cpu()
                    by_value, by_kl = self._coefficients(new)
                loss = -(by_value[rows, steps].to(value) * value).sum()
                if self._reference is not None:
                    kl = self._divergence(self._reference, transition, rows, steps)
                    loss = loss - (by_kl[rows, steps].to(kl) * kl).sum()
                    divergences += [kl.detach().sum()] if counts else []
                processes.backward(loss if counts else 0 * loss)
            if counts:
                changes.append(value.detach())
        kl_sum = sum(torch.stack(divergences).tolist()) if divergences else 0.0
        rows, steps = torch.cat(packing.all).unbind(dim=1)
        return self._statistics(new, kl_sum, steps, torch.cat(changes).cpu() - self._old[rows, steps])

    def reevaluate_old(self, processes: Processes, check: Check) -> Tensor:
        """Recompute the old log-probabilities in this update's micro-batches, with the sampling policy's weights.

        Args:
            processes: Processes of this training.
            check: Called before each micro-batch; raises to abort.

        Returns:
            The new old log-probabilities [B, S - 1]. Steps without an item keep the rollout's values.
        """
        old = self._evaluated(self._batch.old_log_probs, self._log_prob, self._packing.all, processes, check)
        self._batch = replace(self._batch, old_log_probs=old)
        self._old = self._old_values()
        return old

    def _old_values(self) -> Tensor:
        """`_value` under the old policy, [B, S - 1]."""
        old = self._batch.old_log_probs
        return old if self._normalised is None else torch.zeros_like(old)

    @torch.no_grad()
    def _evaluated(
        self,
        otherwise: Tensor,
        value: ValueOfItems,
        parts: Sequence[Tensor],
        processes: Processes,
        check: Check,
    ) -> Tensor:
        """Values under the current policy, [B, S - 1].

        Args:
            otherwise: Values [B, S - 1] of the steps that are not in `parts`.
            value: `_value` or `_log_prob`.
            parts: Micro-batches of items.
            processes: Processes of this training.
            check: Called before each micro-batch; raises to abort.
        """
        values = otherwise.clone()
        for rows, steps, counts in self._rounds(parts, processes):
            check()
            found = value(self._transition(self._policy, rows, steps), rows, steps)
            if counts:
                values[rows, steps] = found.cpu()
        return values

    def _rounds(self, parts: Sequence[Tensor], processes: Processes) -> Iterator[tuple[Tensor, Tensor, bool]]:
        """Rows [n] and steps [n] of each micro-batch, and whether they count.

        All processes must perform every pass of a sharded network. A process with fewer micro-batches than another
        therefore repeats an item that does not count.

        Args:
            parts: Micro-batches of this process, each int64 [n, 2].
            processes: Processes of this training.
        """
        for number in range(processes.largest(len(parts))):
            counts = number < len(parts)
            part = parts[number] if counts else self._packing.all[0][:1]
            yield part[:, 0], part[:, 1], counts

    def _coefficients(self, new: Tensor) -> tuple[Tensor, Tensor]:
        """The objective's derivatives [B, S - 1] by each value and each KL divergence; valid where `new` is."""
        chunks, objective = self._batch.chunks, self._objective
        return gradient_coefficients(
            new,
            self._old,
            self._batch.advantages,
            objective.clip_range,
            chunks.assignment,
            objective.kl_coef,
            chunks.weights,
            chunks.selected,
            chunks.kl_weights,
            self._drift,
        )

    def _transition(self, policy: PolicyVelocity, rows: Tensor, steps: Tensor) -> Transition:
        """Gaussian of each item's step: mean [n, L, D].

        Args:
            policy: Trained policy or reference.
            rows: Trajectory of each item [n].
            steps: Step of each item [n].
        """
        batch, grid = self._batch, self._grid
        x = batch.states[rows, steps - batch.first_step[rows]]  # [n, L, D]
        t, t_next = grid.times[steps], grid.times[steps + 1]
        velocity = policy(x, t.to(x), batch.conditioning.rows(rows).to(x.device))
        return grid.sampler.transition(x, velocity, t, t_next, grid.noise[steps])

    def _log_prob(self, transition: Transition, rows: Tensor, steps: Tensor) -> Tensor:
        """Log-probability [n] of each item.

        Args:
            transition: Gaussians of the items' steps.
            rows: Trajectory of each item [n].
            steps: Step of each item [n].
        """
        after = self._batch.states[rows, steps - self._batch.first_step[rows] + 1]  # [n, L, D]
        return gaussian_log_prob(after, transition.mean, transition.std)

    def _value(self, transition: Transition, rows: Tensor, steps: Tensor) -> Tensor:
        """Log-probability [n] of each item, or its normalised log-ratio, which is 0 under the old policy.

        Keeps each item's divergence from the old policy if it bounds the update.

        Args:
            transition: Gaussians of the items' steps.
            rows: Trajectory of each item [n].
            steps: Step of each item [n].
        """
        batch, log_probs = self._batch, self._log_prob(transition, rows, steps)
        if batch.old_means is None:
            return log_probs
        old_mean = batch.old_means[rows, steps - batch.first_step[rows]]  # [n, L, D]
        drift = gaussian_kl(transition.mean, old_mean, transition.std)  # [n]
        if self._drift is not None:
            self._drift[rows, steps] = drift.detach().cpu().to(self._drift)
        if self._normalised is None:
            return log_probs
        columns = (log_probs, batch.old_log_probs[rows, steps], drift, transition.std.expand(len(rows)))
        return self._normalised(*(column.to(log_probs).unsqueeze(1) for column in columns)).squeeze(1)

    def _divergence(
        self, reference: PolicyVelocity, transition: Transition, rows: Tensor, steps: Tensor
    ) -> Tensor:
        """KL divergence [n] of each item from the reference policy.

        Args:
            reference: Reference policy.
            transition: Gaussians of the items' steps under the trained policy.
            rows: Trajectory of each item [n].
            steps: Step of each item [n].
        """
        with torch.no_grad():
            anchor = self._transition(reference, rows, steps)
        return gaussian_kl(transition.mean, anchor.mean, transition.std)

    def _statistics(self, new: Tensor, kl_sum: float, steps: Tensor, changes: Tensor) -> UpdateStats:
        chunks = self._batch.chunks
        ratios = chunk_ratio(new, self._old, chunks.assignment)
        clipped = clipped_chunks(
            ratios, self._batch.advantages, self._objective.clip_range, chunks.assignment, self._drift
        )
        return UpdateStats(
            ratios=ratios[chunks.selected],
            chunk=chunks.selected.nonzero()[:, 1],
            clipped=clipped[chunks.selected],
            kl_sum=kl_sum,
            steps=steps,
            log_prob_change=changes,
        )
