"""Where a training run writes its metrics while it runs: TensorBoard, Weights & Biases, and the journal.

The logs contain timestamps, so they must not be DVC outputs. The results of a run are its metric rows.

Weights & Biases is not tested against the real service: wandb is not a dependency of the project. The tests replace it
by a stub, which checks the calls but not the service's responses.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from chunk_grpo.artifacts.storage import storage_errors
from chunk_grpo.errors import ConfigError
from chunk_grpo.training.journal import Heading, Journal
from chunk_grpo.training.metrics import MetricRow
from chunk_grpo.training.run import RunPaths
from chunk_grpo.training.trackers import WANDB_ADVICE, check_trackers

_IMAGES = "heldout"
"""Name of the images in TensorBoard and Weights & Biases."""

_ID_FILE = "wandb_run_id.txt"


class MetricSink(Protocol):
    """Receives the metrics of one run, in the order of the iterations."""

    def log(
        self, iteration: int, metrics: Mapping[str, float], images: NDArray[np.uint8] | None = None
    ) -> None:
        """Write metrics so that they survive a kill of this process.

        Args:
            iteration: Number of completed iterations; 0 is the base model.
            metrics: Values by name.
            images: Held-out images [n, H, W, 3], n at least 1.
        """
        ...

    def close(self, *, is_finished: bool) -> None:
        """Write what is left.

        Args:
            is_finished: Whether training finished; False after a stop or an error.
        """
        ...


def open_sinks(
    paths: RunPaths, heading: Heading, rows: Sequence[MetricRow], first: int, *, is_main: bool
) -> list[MetricSink]:
    """Open the trackers and the journal of a run, all in the folder `paths.logs` / `paths.name`.

    A resumed run shows each value once: the journal is written again from `rows`, TensorBoard hides what earlier
    processes logged at `first` or later, and Weights & Biases keeps the values that it already has.

    Args:
        paths: Folders, name, trackers and configuration of the run.
        heading: First line of the journal.
        rows: Metrics of the checkpoint from which the run resumes.
        first: First iteration that is logged, at least 0; after a resume it may be the checkpoint's.
        is_main: Whether this process writes. Other processes only check, and get no sinks.

    Raises:
        ConfigError: A tracker is not installed, or wandb is neither logged in nor offline, or does not start.
        DataError: The folder cannot be written.
    """
    check_trackers(paths.trackers)
    if not is_main:
        return []
    folder, sinks = paths.logs / paths.name, list[MetricSink]()
    with storage_errors("write", folder):
        folder.mkdir(parents=True, exist_ok=True)
        if "tensorboard" in paths.trackers:
            sinks.append(_TensorBoard(folder, paths.config, first))
        if "wandb" in paths.trackers:
            sinks.append(_WeightsAndBiases(folder, paths.name, paths.config, first))
    if again := {name: value for iteration, name, value in rows if iteration == first}:
        for tracker in sinks:
            tracker.log(first, again)
    return [*sinks, Journal(folder, heading, rows)]


class _TensorBoard:
    """Event files of TensorBoard."""

    def __init__(self, folder: Path, config: Mapping[str, Any], first: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # TensorBoard reads the files in the order of their names, events.out.tfevents.SECOND.HOST.PROCESS.NUMBER. Names
        # are compared as text: with equal seconds, number 10 would sort before 9.
        while any(folder.glob(f"events.out.tfevents.{int(time.time()):010d}.*")):
            time.sleep(0.05)
        self._writer = SummaryWriter(str(folder), purge_step=first)
        lines = json.dumps(config, indent=2, default=str).splitlines()
        # TensorBoard shows text as Markdown, where four spaces mark code.
        self._writer.add_text("config", "\n".join(f"    {line}" for line in lines), first)

    def log(
        self, iteration: int, metrics: Mapping[str, float], images: NDArray[np.uint8] | None = None
    ) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, iteration)
        if images is not None:
            self._writer.add_images(_IMAGES, images, iteration, dataformats="NHWC")
        self._writer.flush()

    def close(self, *, is_finished: bool) -> None:
        del is_finished
        self._writer.close()


class _WeightsAndBiases:
    """A run of Weights & Biases. It drops values of steps that it already has."""

    def __init__(self, folder: Path, name: str, config: Mapping[str, Any], first: int) -> None:
        self._wandb = import_module("wandb")  # an import statement would need type stubs for mypy
        file = folder / _ID_FILE
        if first == 0 or not file.exists():  # wandb would drop the steps of a run that starts again
            file.write_text(uuid4().hex + "\n", encoding="utf-8")
        run_id = file.read_text(encoding="utf-8").strip()
        try:
            self._run = self._wandb.init(
                project="chunk-grpo", name=name, dir=str(folder), id=run_id, resume="allow"
            )
        except self._wandb.Error as error:
            raise ConfigError(f"trackers: wandb does not start ({error}). {WANDB_ADVICE}") from error
        self._run.config.update(dict(config), allow_val_change=True)

    def log(
        self, iteration: int, metrics: Mapping[str, float], images: NDArray[np.uint8] | None = None
    ) -> None:
        shown = {} if images is None else {_IMAGES: [self._wandb.Image(image) for image in images]}
        self._run.log({**metrics, **shown}, step=iteration)

    def close(self, *, is_finished: bool) -> None:
        del is_finished
        self._run.finish()
