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
    """Prompts and reward of a training.

    Attributes:
        prompts: Training prompts.
        heldout: Held-out prompts.
        reward: Reward that training maximises.
        unseen: Scorers of the held-out images that training does not maximise; None: none are configured.
    """

    prompts: PromptSet
    heldout: PromptSet
    reward: Reward
    unseen: Reward | None = None


@dataclass(frozen=True)
class RunPaths:
    """Where a run writes its checkpoints, journal and tracker logs.

    Attributes:
        checkpoints: Folder of the checkpoints, not shared with other runs.
        identity: Name of the computation. Checkpoints with another identity are refused.
        logs: Folder of the journals and tracker logs of all runs.
        name: Name of the run, and of its folder below `logs`.
        trackers: Names of the trackers.
        config: Settings that the trackers show.
        start: Saved policy with whose weights training starts, as `Family.with_transformer` takes it; None: the base
            model's.
        copies: Folder or URL of copies of the checkpoints, not shared with other runs; None: there are none.
    """

    checkpoints: Path
    identity: str
    logs: Path
    name: str
    trackers: tuple[Literal["tensorboard", "wandb"], ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    start: Path | None = None
    copies: str | None = None
