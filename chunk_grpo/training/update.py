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
from typing import Any

import torch
from torch import Tensor

from chunk_grpo.core.objective import Bounds, Terms, clipped_chunks, gradient_coefficients
from chunk_grpo.core.ratios import chunk_ratio
from chunk_grpo.training.method import Method
from chunk_grpo.training.packing import pack
from chunk_grpo.training.processes import Processes
from chunk_grpo.training.step_values import PolicyVelocity, UpdateBatch, step_values
from chunk_grpo.training.stopping import Check

ValueOfItems = Callable[[Any, Tensor, Tensor], Tensor]
"""(predictions, rows [n], steps [n]) -> [n]."""


@dataclass(frozen=True)
class UpdateStats:
    """Statistics of one update over its n selected chunks and m trained items."""

    ratios: Tensor
    """Ratios of the selected chunks [n]."""
    chunk: Tensor
    """int64 [n], number of the chunk of each ratio."""
    clipped: Tensor
    """Bool [n], whether clipping stopped the gradient of the ratio."""
    kl_sum: float
    """Sum over the items of the KL divergence from the reference policy."""
    steps: Tensor
    """int64 [m], step of each item."""
    log_prob_change: Tensor
    """New minus old log-probability of each item [m], from the pass with gradients."""

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
        method: Method,
        batch: UpdateBatch,
        bounds: Bounds,
        micro_batch_size: int,
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
        self._values = step_values(method, batch)
        self._policy, self._batch, self._bounds = policies.policy, batch, bounds
        self._reference = policies.reference if bounds.kl_coef > 0 else None
        self._packing = pack(batch.chunks, micro_batch_size)
        self._old = self._values.old(batch.old_log_probs)

    def accumulate_gradient(self, processes: Processes, *, on_policy: bool, check: Check) -> UpdateStats:
        """Add the gradient of the negative objective to the gradients of the policy's parameters.

        Paper: Eq. (13) and (14); the decomposition is in docs/equations.md.

        Args:
            processes: Processes of this training. The gradient is averaged over them.
            on_policy: Whether this is the first update after a rollout: ratios are 1 and are not computed.
            check: Called before each micro-batch; raises to abort.
        """
        new, packing = self._old, self._packing
        if not on_policy and self._values.has_ratio:
            new = self._evaluated(self._old, self._values.value, packing.divided, processes, check)
        by_value, by_kl = self._coefficients(new)
        divergences: list[Tensor] = []
        changes: list[Tensor] = []
        rounds = list(self._rounds(packing.all, processes))
        for number, (rows, steps, counts) in enumerate(rounds):
            check()
            with processes.accumulating(last=number == len(rounds) - 1):
                prediction = self._values.predict(self._policy, rows, steps)
                value = self._values.value(prediction, rows, steps)
                if not on_policy and counts:
                    # For items of `packing.divided` this repeats the value of the first pass.
                    new[rows, steps] = value.detach().cpu()
                    by_value, by_kl = self._coefficients(new)
                loss = -(by_value[rows, steps].to(value) * value).sum()
                if self._reference is not None:
                    with torch.no_grad():
                        anchor = self._values.predict(self._reference, rows, steps)
                    kl = self._values.divergence(prediction, anchor)
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
        kept = self._batch.old_log_probs
        kept = self._evaluated(kept, self._values.evaluate_old, self._packing.all, processes, check)
        self._old = self._values.old(kept)
        return kept

    @torch.no_grad()
    def _evaluated(
        self,
        default: Tensor,
        value_of: ValueOfItems,
        parts: Sequence[Tensor],
        processes: Processes,
        check: Check,
    ) -> Tensor:
        """Values under the current policy, [B, S - 1].

        Args:
            default: Values [B, S - 1] for steps outside `parts`.
            value_of: Function of a micro-batch's predictions.
            parts: Micro-batches of items.
            processes: Processes of this training.
            check: Called before each micro-batch; raises to abort.
        """
        values = default.clone()
        for rows, steps, counts in self._rounds(parts, processes):
            check()
            found = value_of(self._values.predict(self._policy, rows, steps), rows, steps)
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
        terms = self._terms
        if not self._values.has_ratio:
            # A ratio of 1 and an advantage of 1: the gradient of the values themselves.
            new, terms = self._old, replace(terms, advantage=torch.ones_like(terms.advantage))
        return gradient_coefficients(new, terms, self._bounds)

    @property
    def _terms(self) -> Terms:
        batch = self._batch
        return Terms(self._old, batch.advantages, batch.chunks, self._values.drift)

    def _statistics(self, new: Tensor, kl_sum: float, steps: Tensor, changes: Tensor) -> UpdateStats:
        chunks = self._batch.chunks
        ratios = chunk_ratio(new if self._values.has_ratio else self._old, self._old, chunks.assignment)
        clipped = clipped_chunks(ratios, self._terms, self._bounds)
        return UpdateStats(
            ratios=ratios[chunks.selected],
            chunk=chunks.selected.nonzero()[:, 1],
            clipped=clipped[chunks.selected],
            kl_sum=kl_sum,
            steps=steps,
            log_prob_change=changes,
        )
