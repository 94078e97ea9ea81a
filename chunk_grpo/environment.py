"""Names shared by the programs of the project: environment variables and Prefect events."""

import os
from pathlib import Path
from typing import TypeVar

from chunk_grpo.errors import ConfigError

Default = TypeVar("Default", int, None)

PROCESSES = "CHUNK_GRPO_PROCESSES"
"""Number of processes on each machine that share a stage."""

MACHINES = "PET_NNODES"
"""Number of machines that share a stage. This variable and the next two are torchrun's."""

MACHINE = "PET_NODE_RANK"
"""Number of this machine, from 0. Machine 0 runs the stage."""

MASTER_ADDRESS = "PET_MASTER_ADDR"
"""Host name or IP address of machine 0."""

NOTES = "CHUNK_GRPO_MACHINES"
"""Folder, on a disk that all machines see, in which several machines leave notes for each other."""

STOP_SECONDS = "CHUNK_GRPO_STOP_SECONDS"
"""Seconds in which a stopped training must save its checkpoint, at least 1."""

CHECKPOINTS = "CHUNK_GRPO_CHECKPOINTS"
"""Folder or URL with copies of the checkpoints of trainings in progress."""

PARENT = "CHUNK_GRPO_PARENT"
"""Process id of the launcher, set for the processes that it starts."""

EXIT_CODE = "CHUNK_GRPO_EXIT_CODE"
"""File in which a stage leaves its exit code, which `dvc repro` and torch's launcher hide."""

REPOSITORY = "CHUNK_GRPO_REPOSITORY"
"""Checkout from which flow runs clone a commit; by default the checkout of this code."""

STAGE_ATTEMPTS = "CHUNK_GRPO_STAGE_ATTEMPTS"
"""Number of attempts of a flow run at a stage that ends with exit code 75 (default 3) or whose machine is lost (2)."""

END_STALLED = "CHUNK_GRPO_END_STALLED"
"""Silence after which a flow run ends a training and tries it again, in units of its longest time between two lines of
its journal. Without it there is only a warning."""

WORKER_PID = "CHUNK_GRPO_WORKER_PID"
"""Process id of the worker. Its flow runs end when it ends."""

PUBLISH = "CHUNK_GRPO_PUBLISH"
"""Folder or URL to which finished runs are published."""

REPORTS_URL = "CHUNK_GRPO_REPORTS_URL"
"""URL of the published reports."""

NOTIFY_WEBHOOK = "CHUNK_GRPO_NOTIFY_WEBHOOK"
"""Secret URL to which alerts are sent."""

SCORE_MOVED = "chunk-grpo.score.moved"
"""Event: the score of a published model has changed."""


def own_cache(name: str) -> Path:
    """A folder of this user for what can be made again: `name` in ~/.cache/chunk-grpo, or below XDG_CACHE_HOME."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path("~/.cache").expanduser()) / "chunk-grpo" / name


def whole_number(name: str, default: Default, least: int = 1) -> int | Default:
    """Value of a variable; the default if it is not set, or empty.

    Raises:
        ConfigError: It is not a whole number of at least `least`.
    """
    text = os.environ.get(name)
    if not text:
        return default
    if not text.isdecimal() or int(text) < least:
        raise ConfigError(f"{name}: must be a whole number of at least {least}, got {text!r}; set one, or unset it")
    return int(text)
