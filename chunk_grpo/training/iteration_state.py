"""An iteration in progress: what it learns from, and the updates so far. Resuming from it gives the same bits."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from chunk_grpo.families.prompts import PromptSet
from chunk_grpo.training.rollouts import Experience, SampledTrajectories
from chunk_grpo.training.update import UpdateStats


@dataclass
class IterationState:
    """An iteration in progress."""

    iteration: int
    """Number of the iteration, from 1."""
    experience: Experience
    """Trajectories of this process; the rows of each update are consecutive."""
    advantages: Tensor
    """Advantages of these rows, float64 [B] or [B, K]."""
    metrics: dict[str, float]
    """Rollout metrics by name."""
    updates: list[tuple[UpdateStats, float]] = field(default_factory=list)
    """Statistics and gradient norm of each completed update."""
    seconds: float = 0.0
    """Time spent on updates, in seconds."""

    def state(self) -> dict[str, Any]:
        """Plain values and tensors, for a checkpoint. Prompts are left out: the iteration determines them."""
        experience = self.experience
        return {
            "iteration": self.iteration,
            "advantages": self.advantages,
            "trajectories": _plain(experience.trajectories),
            "group_size": experience.group_size,
            "scores": {name: torch.from_numpy(values) for name, values in experience.scores.items()},
            "rollout_seconds": experience.seconds,
            "metrics": self.metrics,
            "updates": [(_plain(stats), norm) for stats, norm in self.updates],
            "seconds": self.seconds,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any], prompts: PromptSet, device: torch.device) -> IterationState:
        """Restore the result of `state`.

        Args:
            state: Result of `state`, of this process.
            prompts: Prompt of each trajectory of this process.
            device: Device of the restored latents.
        """
        stored: dict[str, Tensor | None] = state["trajectories"]
        latents = {name: stored[name] for name in ("states", "means", "finals")}
        moved = {name: value if value is None else value.to(device) for name, value in latents.items()}
        fields_by_name: dict[str, Any] = stored | moved
        trajectories = SampledTrajectories(**fields_by_name)
        experience = Experience(
            prompts=prompts,
            trajectories=trajectories,
            group_size=state["group_size"],
            scores={name: values.numpy() for name, values in state["scores"].items()},
            seconds=state["rollout_seconds"],
        )
        return cls(
            iteration=state["iteration"],
            experience=experience,
            advantages=state["advantages"],
            metrics=state["metrics"],
            updates=[(UpdateStats(**stats), norm) for stats, norm in state["updates"]],
            seconds=state["seconds"],
        )


def _plain(values: SampledTrajectories | UpdateStats) -> dict[str, Any]:
    """Fields of the dataclass by name, with tensors on the CPU, because processes exchange them."""
    found = {each.name: getattr(values, each.name) for each in fields(values)}
    return {name: value.cpu() if isinstance(value, Tensor) else value for name, value in found.items()}
