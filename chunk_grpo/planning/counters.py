"""Evaluations of the velocity network in a training, counted by purpose."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias
from unittest.mock import patch

import torch
from torch import Tensor

from chunk_grpo.families.base import Conditioning
from chunk_grpo.families.diffusers_family import DiffusersFamily
from chunk_grpo.training import trainer
from chunk_grpo.training.heldout import HeldoutEvaluation
from chunk_grpo.training.update import Update

Purpose: TypeAlias = Literal["rollout", "old", "ratio", "update", "reference", "heldout", "fidelity", "other"]
"""What the network is evaluated for. `old`: old log-probabilities in the update's batches; `ratio`: ratios of chunks
that are larger than a micro-batch; `update`: everything with gradients; `reference`: the KL divergence;
`fidelity`: ratios of a policy to itself."""


@dataclass
class Count:
    """Evaluations of one purpose."""

    states: float = 0
    """Images or items whose velocity is computed."""
    passes: float = 0
    """Calls of the network."""
    images: float = 0
    """Images that are decoded."""


@dataclass
class Counters:
    """Counts of the network's evaluations."""

    counts: dict[Purpose, Count] = field(default_factory=lambda: defaultdict(Count))
    """Evaluations by purpose."""
    results: dict[Purpose, Any] = field(default_factory=dict)
    """Last result by purpose of a function that `within` patches."""
    purpose: Purpose = "other"
    """What the network is evaluated for now."""

    def within(self, owner: Any, function: str, purpose: Purpose) -> AbstractContextManager[object]:
        """Patch a function: what is evaluated inside it has this purpose."""
        original: Callable[..., Any] = getattr(owner, function)

        def call(*arguments: Any, **options: Any) -> Any:
            self.purpose = purpose
            try:
                self.results[purpose] = original(*arguments, **options)
            finally:
                self.purpose = "other"
            return self.results[purpose]

        return patch.object(owner, function, call)

    def velocity(self, states: int) -> None:
        """Count a call of the network."""
        trains = torch.is_grad_enabled() and self.purpose != "fidelity"
        count = self.counts["update" if trains else self.purpose]
        count.states += states
        count.passes += 1
        if trains:
            # An update computes its ratios first. What it evaluates without gradients later is the reference policy.
            self.purpose = "reference"


@contextmanager
def counting(family: Any = DiffusersFamily) -> Iterator[Counters]:
    """Count the evaluations of a class of families inside the context.

    Its methods are patched, so trainer and reference run unchanged. Create them inside the context: a method of the
    family bound before is not counted.
    """
    counters, velocity, decode = Counters(), family.velocity, family.decode

    def counted_velocity(model: Any, x: Tensor, t: Tensor, conditioning: Conditioning) -> Tensor:
        counters.velocity(len(x))
        found: Tensor = velocity(model, x, t, conditioning)
        return found

    def counted_decode(model: Any, latents: Tensor) -> Tensor:
        counters.counts[counters.purpose].images += len(latents)
        found: Tensor = decode(model, latents)
        return found

    with (
        patch.object(family, "velocity", counted_velocity),
        patch.object(family, "decode", counted_decode),
        counters.within(trainer, "collect_experience", "rollout"),
        counters.within(Update, "reevaluate_old", "old"),
        counters.within(Update, "on_policy", "fidelity"),
        counters.within(Update, "accumulate_gradient", "ratio"),
        counters.within(HeldoutEvaluation, "evaluate", "heldout"),
    ):
        yield counters
