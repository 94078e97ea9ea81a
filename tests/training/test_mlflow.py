"""MLflow's sink, by a stand-in that keeps runs as its server does."""

import fcntl
import os
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from chunk_grpo.errors import ConfigError
from chunk_grpo.training.journal import FILE
from chunk_grpo.training.sinks import MetricSink

from .conftest import TRACKED, open_in


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., MetricSink]:
    return lambda **options: open_in(tmp_path, "mlflow", **options)[0]


class MLflowError(Exception):
    def __init__(self, message: str, error_code: str = "INTERNAL_ERROR") -> None:
        super().__init__(message)
        self.error_code = error_code


class Server(ModuleType):
    """Part of mlflow that the sink uses, with its runs kept across clients."""

    def __init__(self) -> None:
        super().__init__("mlflow")
        self.__spec__ = ModuleSpec("mlflow", None)
        self.MlflowException = MLflowError
        self.entities = SimpleNamespace(
            Metric=lambda key, value, timestamp, step: SimpleNamespace(key=key, value=value, step=step)
        )
        self.uris: list[str] = []
        self.artifacts: dict[str, str | None] = {}
        self.runs: dict[str, SimpleNamespace] = {}
        self.failure: Exception | None = None

    def MlflowClient(self, uri: str) -> "Server":
        self.uris.append(uri)
        return self

    def _answer(self) -> None:
        if self.failure is not None:
            raise self.failure

    def create_experiment(self, name: str, artifacts: str | None) -> str:
        self._answer()
        if name in self.artifacts:
            raise MLflowError("it is there", "RESOURCE_ALREADY_EXISTS")
        self.artifacts[name] = artifacts
        return name

    def get_experiment_by_name(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(experiment_id=name)

    def create_run(self, experiment: str, run_name: str) -> SimpleNamespace:
        run = SimpleNamespace(info=SimpleNamespace(run_id=f"id{len(self.runs)}"), name=run_name, status="RUNNING")
        run.data, run.images, run.params = SimpleNamespace(metrics={}), [], {}
        return self.runs.setdefault(run.info.run_id, run)

    def search_runs(self, experiments: list[str], words: str) -> list[SimpleNamespace]:
        return [run for name, run in self.runs.items() if words == f"attributes.run_id = '{name}'"]

    def update_run(self, run_id: str, status: str) -> None:
        self.runs[run_id].status = status

    def log_param(self, run_id: str, key: str, value: object) -> None:
        assert self.runs[run_id].params.setdefault(key, value) == value

    def get_metric_history(self, run_id: str, name: str) -> list[SimpleNamespace]:
        return self.runs[run_id].data.metrics[name]

    def log_batch(self, run_id: str, metrics: list[SimpleNamespace]) -> None:
        self._answer()
        assert 0 < len(metrics) <= 1000
        for metric in metrics:
            self.runs[run_id].data.metrics.setdefault(metric.key, []).append(metric)

    def log_image(self, run_id: str, image: Any, *, key: str, step: int) -> None:
        self.runs[run_id].images.append((key, step, image.shape))

    def set_terminated(self, run_id: str, status: str) -> None:
        self._answer()
        self.update_run(run_id, status)

    def values(self, run_id: str, name: str) -> list[tuple[int, float]]:
        return [(metric.step, metric.value) for metric in self.runs[run_id].data.metrics[name]]


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> Server:
    """Installed, with nothing set in the environment."""
    module = Server()
    monkeypatch.setitem(sys.modules, "mlflow", module)
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.environ", dict(os.environ))
    return module


def test_mlflow_gets_the_run_its_configuration_numbers_and_images(mlflow, opened, tmp_path):
    sink = opened()
    sink.log(0, {"kl": 0.5}, np.zeros((2, 4, 6, 3), dtype=np.uint8))
    assert mlflow.uris == [f"sqlite:///{tmp_path}/mlflow.db"]
    assert mlflow.artifacts == {"chunk-grpo": f"file://{tmp_path}/mlflow"}
    run = mlflow.runs["id0"]
    assert (run.name, run.status) == ("chunk/seed-0", "RUNNING")
    assert run.params == {"train.learning_rate": 1e-5, "train.plan": [2, 3], "seed": 0}
    assert mlflow.values("id0", "kl") == [(0, 0.5)]
    assert run.images == [("heldout/00", 0, (4, 6, 3)), ("heldout/01", 0, (4, 6, 3))]
    sink.close(is_finished=True)
    assert run.status == "FINISHED"


def test_one_training_at_a_time_makes_mlflows_tables(mlflow, opened, monkeypatch, tmp_path):
    """Two that make them at once fail: `duplicate column name`."""
    held: list[bool] = []

    def client(uri: str) -> Server:
        other = os.open(tmp_path, os.O_RDONLY)
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held.append(True)
        finally:
            os.close(other)
        return mlflow

    monkeypatch.setattr(mlflow, "MlflowClient", client)
    opened()
    assert held == [True]


def test_the_environment_names_server_and_experiment(mlflow, opened, monkeypatch):
    monkeypatch.setitem(os.environ, "MLFLOW_TRACKING_URI", "http://server")
    monkeypatch.setitem(os.environ, "MLFLOW_EXPERIMENT_NAME", "/Shared/own")
    monkeypatch.setitem(os.environ, "MLFLOW_HTTP_REQUEST_TIMEOUT", "5")
    opened()
    assert (mlflow.uris, mlflow.artifacts) == (["http://server"], {"/Shared/own": None})  # the server has a place
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "5"
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "1"


def test_a_resume_continues_the_mlflow_run_with_each_value_once(mlflow, opened):
    picture = np.zeros((1, 4, 6, 3), dtype=np.uint8)
    first = opened()
    for step in range(6):
        first.log(step, {"reward_mean": float(step)}, picture)
    first.close(is_finished=False)
    assert mlflow.runs["id0"].status == "KILLED"
    second = opened(
        rows=[(i, "reward_mean", float(i)) for i in range(1, 4)],
        first=3,
        config={**TRACKED, "train": {"learning_rate": 2e-5}},
    )
    assert mlflow.runs["id0"].params["train.learning_rate"] == 1e-5  # MLflow refuses another
    assert mlflow.runs["id0"].status == "RUNNING"
    for step in range(4, 8):
        second.log(step, {"reward_mean": 10.0 + step}, picture)
    expected = [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 16), (7, 17)]
    assert mlflow.values("id0", "reward_mean") == expected
    assert [step for _, step, _ in mlflow.runs["id0"].images] == list(range(8))
    opened()  # a training that starts again
    del mlflow.runs["id1"]
    opened(first=2)  # whose run was deleted
    assert list(mlflow.runs) == ["id0", "id1"] and not mlflow.runs["id1"].data.metrics


def test_values_that_mlflow_does_not_take_wait(mlflow, opened, monkeypatch, caplog):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("chunk_grpo.training.sinks.time.monotonic", lambda: clock.now)
    picture = np.zeros((1, 4, 6, 3), dtype=np.uint8)
    sink = opened()
    sink.log(1, {"kl": 1.0})
    mlflow.failure = ConnectionError("http://me:secret@server is\ngone")
    sink.log(2, {"kl": 2.0}, picture)
    sink.log(3, {"kl": 3.0}, picture)  # not sent: a silent server would hold up each iteration
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "trackers: mlflow failed (http://***@server is gone). The training goes on. 1 values wait"
    )
    mlflow.failure = None
    clock.now = 119.0
    sink.log(4, {"kl": 4.0})
    assert mlflow.values("id0", "kl") == [(1, 1.0)]
    clock.now = 120.0
    sink.log(5, dict.fromkeys(["kl", *map(str, range(1500))], 5.0), picture)
    assert mlflow.values("id0", "kl") == [(step, float(step)) for step in range(1, 6)]
    assert mlflow.values("id0", "1499") == [(5, 5.0)]
    assert mlflow.runs["id0"].images == [("heldout/00", 5, (4, 6, 3))]
    mlflow.failure = ConnectionError("gone")
    sink.close(is_finished=True)
    assert (len(caplog.records), mlflow.runs["id0"].status) == (2, "RUNNING")


def test_mlflow_that_does_not_start_ends_the_run(mlflow, opened, tmp_path):
    mlflow.failure = MLflowError("no\nanswer.")
    with pytest.raises(ConfigError) as caught:
        opened()
    assert str(caught.value) == (
        "trackers: mlflow does not start (no answer). Start its server, or correct MLFLOW_TRACKING_URI, or unset it to "
        "write logs/mlflow.db, or remove mlflow from the trackers."
    )
    assert not list(tmp_path.rglob(FILE))
