"""Metrics and images of a training in progress in TensorBoard or Weights & Biases, through accelerate's trackers.

The logs contain timestamps, so `folder` must not be a DVC output. The results of a run are its metric rows.

Weights & Biases is not tested against the real service: wandb is not a dependency of the project. The tests replace it
by a stub, which checks the calls but not the service's responses.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from chunk_grpo.errors import ConfigError, DataError

TrackerName = Literal["tensorboard", "wandb"]

_PROJECT = "chunk-grpo"
"""Project name in Weights & Biases."""

_ID_FILE = "wandb_run_id.txt"

_WITHOUT_LOGIN = ("offline", "disabled", "dryrun")
"""Values of WANDB_MODE with which wandb contacts no server."""

_WANDB_ADVICE = (
    "Run `wandb login`, or set WANDB_MODE=offline and upload later with `wandb sync`, or remove wandb from the "
    "trackers."
)


def check_trackers(names: Sequence[TrackerName]) -> None:
    """Check early that these trackers can be opened. Contacts no server.

    Raises:
        ConfigError: A tracker is unknown or not installed, or wandb is neither logged in nor offline.
    """
    for name in names:
        if name not in get_args(TrackerName):
            raise ConfigError(
                f"trackers: unknown tracker {name!r}; known are {', '.join(get_args(TrackerName))}"
            )
        if find_spec(name) is None:
            raise ConfigError(
                f"trackers: {name} is not installed. Run `pip install {name}`, or remove {name} from the trackers."
            )
    if "wandb" in names and not _wandb_needs_no_login():
        raise ConfigError(f"trackers: wandb is not logged in. {_WANDB_ADVICE}")


class Trackers:
    """Writes metrics and images of one training run to all configured trackers.

    A resumed run passes `start_step`; otherwise repeated steps would appear twice. TensorBoard then hides values that
    earlier processes logged at `start_step` or later. Weights & Biases cannot delete values: it continues the same run
    and drops steps that it already has, so the first values remain.

    `Accelerator(log_with=...)` is not used: it cannot set the name of a wandb run apart from the project, adds a
    TensorBoard run for the configuration at every start, and ends distributed training when it closes its trackers.
    An Accelerator with arguments about devices or process groups must be created before this object.
    """

    def __init__(
        self,
        names: Sequence[TrackerName],
        folder: Path,
        run_name: str,
        config: Mapping[str, Any],
        start_step: int = 0,
    ) -> None:
        """Open the trackers. Without names, nothing is imported or written.

        Args:
            names: Names of the trackers; may be empty.
            folder: Folder of all logs; the trackers write to `folder` / `run_name`.
            run_name: Name of the run, such as "chunk-4/seed-0"; the same after a resume.
            config: Settings of the run as plain nested values.
            start_step: First step to log, at least 0; after a resume, the step after the checkpoint.

        Raises:
            ConfigError: See `check_trackers`; or wandb fails to start.
            DataError: The folder cannot be written.
            ValueError: The step is negative.
        """
        if start_step < 0:
            raise ValueError(f"start_step: must be at least 0, got {start_step}")
        self._last_step = start_step
        self._open: list[Any] = []
        if not names:
            return
        check_trackers(names)
        from accelerate import PartialState

        if not PartialState().is_main_process:
            return
        place = folder / run_name
        try:
            place.mkdir(parents=True, exist_ok=True)
            if "tensorboard" in names:
                self._open.append(_start_tensorboard(folder, run_name, config, start_step))
            if "wandb" in names:
                self._open.append(_start_wandb(place, run_name, config, start_step))
        except Exception as error:
            self.close()
            if isinstance(error, OSError):
                raise DataError(
                    f"{place}: cannot be written ({error}). Choose another folder for trackers."
                ) from error
            raise

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log numbers and flush TensorBoard's file.

        Args:
            step: Iteration, at least `start_step` and at least the step of the previous call.
            values: Values by metric.

        Raises:
            ValueError: The step decreases.
        """
        self._advance(step)
        for tracker in self._open:
            # accelerate silently drops numpy scalars.
            tracker.log({name: float(value) for name, value in values.items()}, step=step)

    def log_images(self, step: int, name: str, images: NDArray[np.uint8]) -> None:
        """Log images under one name: a grid in TensorBoard, a list in Weights & Biases.

        Args:
            step: Iteration, as in `log`.
            name: Name of the images.
            images: [N, H, W, 3], N at least 1.

        Raises:
            ValueError: The step decreases, or shape or type of the images is wrong.
        """
        if images.ndim != 4 or images.shape[3] != 3 or images.size == 0 or images.dtype != np.uint8:
            raise ValueError(
                f"images: must be uint8 [N, H, W, 3] and not empty, got {images.dtype} {images.shape}"
            )
        self._advance(step)
        for tracker in self._open:
            if tracker.name == "tensorboard":
                tracker.log_images({name: images}, step=step, dataformats="NHWC")
                tracker.tracker.flush()
            else:
                tracker.log_images({name: list(images)}, step=step)

    def close(self) -> None:
        """Finish all trackers. Later calls write nothing."""
        while self._open:
            self._open.pop().finish()

    def _advance(self, step: int) -> None:
        if step < self._last_step:
            raise ValueError(f"step: must not go back below {self._last_step}, got {step}")
        self._last_step = step


def _start_tensorboard(folder: Path, run_name: str, config: Mapping[str, Any], start_step: int) -> Any:
    from accelerate.tracking import TensorBoardTracker

    _wait_for_a_later_name(folder / run_name)
    tracker = TensorBoardTracker(run_name, folder, purge_step=start_step)
    tracker.start()
    lines = json.dumps(config, indent=2, default=str).splitlines()
    # TensorBoard shows text as Markdown, where four spaces mark code.
    tracker.log({"config": "\n".join(f"    {line}" for line in lines)}, step=start_step)
    return tracker


def _wait_for_a_later_name(folder: Path) -> None:
    """Wait, less than a second, until a new event file sorts after the existing ones.

    TensorBoard reads the files in the order of their names, events.out.tfevents.SECOND.HOST.PROCESS.NUMBER. Names are
    compared as text: with equal seconds, number 10 would sort before 9.
    """
    while any(folder.glob(f"events.out.tfevents.{int(time.time()):010d}.*")):
        time.sleep(0.05)


def _start_wandb(place: Path, run_name: str, config: Mapping[str, Any], start_step: int) -> Any:
    from accelerate.tracking import WandBTracker

    run_id = _wandb_id(place, start_step)
    tracker = WandBTracker(_PROJECT, name=run_name, dir=str(place), id=run_id, resume="allow")
    try:
        tracker.start()
    except _wandb().Error as error:
        raise ConfigError(f"trackers: wandb does not start ({error}). {_WANDB_ADVICE}") from error
    tracker.store_init_configuration(dict(config))
    return tracker


def _wandb_id(place: Path, start_step: int) -> str:
    """Id of the wandb run: kept after a resume, new after a restart, whose steps wandb would otherwise drop."""
    file = place / _ID_FILE
    if start_step > 0 and file.exists():
        return file.read_text(encoding="utf-8").strip()
    run_id = uuid4().hex
    file.write_text(run_id + "\n", encoding="utf-8")
    return run_id


def _wandb_needs_no_login() -> bool:
    """Whether wandb starts without prompting for a key. A prompt would block an unattended run."""
    if os.environ.get("WANDB_MODE") in _WITHOUT_LOGIN or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    return _wandb().api.api_key is not None


def _wandb() -> Any:
    """Import wandb. A plain import statement would require its type stubs for mypy."""
    return import_module("wandb")
