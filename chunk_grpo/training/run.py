"""What a training run learns from, and where it writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from chunk_grpo.families.prompts import PromptSet
from chunk_grpo.scorers.reward import Reward


@dataclass(frozen=True)
class TrainingData:
    """Prompts and reward of a training."""

    prompts: PromptSet
    """Training prompts."""
    heldout: PromptSet
    """Held-out prompts."""
    reward: Reward
    """Reward that training maximises."""
    unseen: Reward | None = None
    """Scorers of the held-out images that training does not maximise; None: none are configured."""


@dataclass(frozen=True)
class RunPaths:
    """Where a run writes its checkpoints, journal and tracker logs."""

    checkpoints: Path
    """Folder of the checkpoints, not shared with other runs."""
    identity: str
    """Name of the computation. Checkpoints with another identity are refused."""
    logs: Path
    """Folder of the journals and tracker logs of all runs."""
    name: str
    """Name of the run, and of its folder below `logs`."""
    trackers: tuple[Literal["tensorboard", "wandb", "mlflow"], ...] = ()
    """Names of the trackers."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Settings that the trackers show."""
    start: Path | None = None
    """Saved policy with whose weights training starts, as `Family.with_transformer` takes it; None: the base
    model's."""
    copies: str | None = None
    """Folder or URL of copies of the checkpoints, not shared with other runs; None: there are none."""
