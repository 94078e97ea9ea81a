"""Where a training run writes its metrics while it runs: TensorBoard, Weights & Biases, MLflow, and the journal.

The logs contain timestamps, so they must not be DVC outputs. The results of a run are its metric rows.

The tests replace wandb and mlflow, which are not in the lock, by stubs: they check the calls, no service's responses.
MLflow was tried by hand, with a file and with a server; Weights & Biases was not.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from chunk_grpo.artifacts.storage import folder_lock, storage_errors
from chunk_grpo.errors import ConfigError, masked, one_line
from chunk_grpo.training.journal import Heading, Journal
from chunk_grpo.training.metrics import MetricRow
from chunk_grpo.training.run import RunPaths
from chunk_grpo.training.trackers import MLFLOW_ADVICE, MLFLOW_SETTINGS, WANDB_ADVICE, check_trackers

_IMAGES = "heldout"
"""Name of the images in the trackers."""

_ID_FILE, _MLFLOW_ID_FILE = "wandb_run_id.txt", "mlflow_run_id.txt"

_PAUSE = 120.0
"""Seconds from a failure of MLflow to the next try; each may wait for the time limit of a request."""

_BATCH = 1000
"""Most values of a request to MLflow."""

_LOST = (
    "trackers: mlflow failed (%s). The training goes on. %d values wait: the next request sends them. MLflow gets no "
    "held-out images until then. progress.jsonl has all values."
)

_logger = logging.getLogger(__name__)


class MetricSink(Protocol):
    """Receives the metrics of one run, in the order of the iterations."""

    def log(self, iteration: int, metrics: Mapping[str, float], images: NDArray[np.uint8] | None = None) -> None:
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
    processes logged at `first` or later, and Weights & Biases and MLflow keep the values that they already have.

    Args:
        paths: Folders, name, trackers and configuration of the run.
        heading: First line of the journal.
        rows: Metrics of the checkpoint from which the run resumes.
        first: First iteration that is logged, at least 0; after a resume it may be the checkpoint's.
        is_main: Whether this process writes. Other processes only check, and get no sinks.

    Raises:
        ConfigError: A tracker is not installed or does not start, or wandb is neither logged in nor offline.
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
        if "mlflow" in paths.trackers:
            sinks.append(_MLflow(folder, paths, first))
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

    def log(self, iteration: int, metrics: Mapping[str, float], images: NDArray[np.uint8] | None = None) -> None:
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
            self._run = self._wandb.init(project="chunk-grpo", name=name, dir=str(folder), id=run_id, resume="allow")
        except self._wandb.Error as error:
            raise ConfigError(f"trackers: wandb does not start ({error}). {WANDB_ADVICE}") from error
        self._run.config.update(dict(config), allow_val_change=True)

    def log(self, iteration: int, metrics: Mapping[str, float], images: NDArray[np.uint8] | None = None) -> None:
        shown = {} if images is None else {_IMAGES: [self._wandb.Image(image) for image in images]}
        self._run.log({**metrics, **shown}, step=iteration)

    def close(self, *, is_finished: bool) -> None:
        del is_finished
        self._run.finish()


class _MLflow:
    """A run of MLflow, at MLFLOW_TRACKING_URI or in the file mlflow.db of the logs. It has each value once."""

    def __init__(self, folder: Path, paths: RunPaths, first: int) -> None:
        os.environ.update({**MLFLOW_SETTINGS, **os.environ})
        self._mlflow = import_module("mlflow")  # an import statement would need it installed for mypy
        uri, logs = os.environ.get("MLFLOW_TRACKING_URI"), paths.logs.absolute()
        file = folder / _MLFLOW_ID_FILE
        known = file.read_text(encoding="utf-8").strip() if first > 0 and file.exists() else None
        try:
            with folder_lock(str(logs)):  # two trainings that make the file's tables at once fail
                self._client = self._mlflow.MlflowClient(uri or f"sqlite:///{logs / 'mlflow.db'}")
            experiment = _experiment(self._mlflow, self._client, None if uri else (logs / "mlflow").as_uri())
            # A search finds nothing where the run was deleted, or made at another server.
            found = known and self._client.search_runs([experiment], f"attributes.run_id = '{known}'")
            run = found[0] if found else self._client.create_run(experiment, run_name=paths.name)
            self._run_id = run.info.run_id
            file.write_text(self._run_id + "\n", encoding="utf-8")
            self._client.update_run(self._run_id, status="RUNNING")
            # MLflow refuses a parameter that changes, as `iterations` does for a longer training.
            for key, value in () if found else _flat(paths.config):
                self._client.log_param(self._run_id, key, value)
            histories = [self._client.get_metric_history(self._run_id, name) for name in run.data.metrics]
        except self._mlflow.MlflowException as error:
            problem = f"trackers: mlflow does not start ({one_line(error)})."
            raise ConfigError(f"{problem} {MLFLOW_ADVICE}") from error
        self._known = {(metric.key, metric.step) for history in histories for metric in history}
        self._unsent, self._next_try = list[Any](), 0.0

    def log(self, iteration: int, metrics: Mapping[str, float], images: NDArray[np.uint8] | None = None) -> None:
        new, now = [name for name in metrics if (name, iteration) not in self._known], int(time.time() * 1000)
        metric = self._mlflow.entities.Metric
        self._unsent += [metric(name, float(metrics[name]), now, iteration) for name in new]
        if time.monotonic() < self._next_try:
            return
        shown = enumerate(images if new and images is not None else ())
        image = partial(self._client.log_image, self._run_id, step=iteration)
        self._send(*(partial(image, pixels, key=f"{_IMAGES}/{number:02}") for number, pixels in shown))

    def _send(self, *calls: Callable[[], object]) -> None:
        try:
            while self._unsent:
                self._client.log_batch(self._run_id, self._unsent[:_BATCH])
                del self._unsent[:_BATCH]
            for call in calls:
                call()
        except Exception as error:  # the library of the server's artifact store raises its own
            self._next_try = time.monotonic() + _PAUSE
            _logger.warning(_LOST, masked(one_line(error)), len(self._unsent))

    def close(self, *, is_finished: bool) -> None:
        status = "FINISHED" if is_finished else "KILLED"
        self._send(partial(self._client.set_terminated, self._run_id, status))


def _experiment(mlflow: Any, client: Any, artifacts: str | None) -> Any:
    """Id of the experiment, which is made unless another training has."""
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "chunk-grpo")
    try:
        return client.create_experiment(name, artifacts)
    except mlflow.MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    return client.get_experiment_by_name(name).experiment_id


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Settings of nested mappings, with names such as `train.iterations`."""
    if not isinstance(value, Mapping):
        yield name, value
        return
    for key, inner in value.items():
        yield from _flat(inner, f"{name}.{key}" if name else str(key))
