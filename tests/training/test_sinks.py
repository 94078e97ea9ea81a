"""Outputs of sinks: TensorBoard files by TensorBoard's reader, Weights & Biases and MLflow by stubs that record."""

import io
import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer

from chunk_grpo.config import Params
from chunk_grpo.errors import ConfigError, DataError, install_command
from chunk_grpo.training.journal import FILE, Heading
from chunk_grpo.training.metrics import MetricRow
from chunk_grpo.training.run import RunPaths
from chunk_grpo.training.sinks import MetricSink, open_sinks
from chunk_grpo.training.trackers import EXTRAS
from tests.conftest import ROOT

CONFIG = {"train": {"learning_rate": 1e-5, "plan": [2, 3]}, "seed": 0}
HEADING = Heading("abc", seed=0, iterations=9, done=0)
Open = Callable[..., list[MetricSink]]


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Open:
    """Opens the sinks of a run in `tmp_path`, at iteration 0 or later."""
    # TensorBoard numbers the files of one second and reads them in the order of their names: 10 before 9.
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(9))

    def opened(
        *trackers: Any, rows: Iterable[MetricRow] = (), first: int = 0, is_main: bool = True
    ) -> list[MetricSink]:
        paths = RunPaths(tmp_path / "unused", "abc", tmp_path, "chunk/seed-0", trackers, CONFIG)
        return open_sinks(paths, HEADING, list(rows), first, is_main=is_main)

    return opened


def read(folder: Path) -> EventAccumulator:
    return EventAccumulator(str(folder / "chunk" / "seed-0")).Reload()


def scalars(folder: Path, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in read(folder).Scalars(tag)]


def test_logged_values_are_readable_without_closing(opened, tmp_path):
    """Nothing is closed before it is read."""
    pictures = np.random.default_rng(0).integers(0, 256, (2, 5, 7, 3), dtype=np.uint8)
    sink, _ = opened("tensorboard")
    sink.log(0, {"heldout_reward": 0.25})
    sink.log(1, {"reward/shapes-graded": np.float32(0.5), "trained_steps": 7}, pictures)
    assert scalars(tmp_path, "heldout_reward") == [(0, 0.25)]
    assert scalars(tmp_path, "reward/shapes-graded") == [(1, 0.5)]
    assert scalars(tmp_path, "trained_steps") == [(1, 7.0)]
    (event,) = read(tmp_path).Images("heldout")
    assert event.step == 1
    shown = np.asarray(Image.open(io.BytesIO(event.encoded_image_string)))
    assert np.array_equal(shown, np.concatenate(list(pictures), axis=1))  # side by side
    (event,) = read(tmp_path).Tensors("config/text_summary")
    text = event.tensor_proto.string_val[0].decode()
    assert '"learning_rate": 1e-05' in text
    assert all(line.startswith("    ") for line in text.splitlines())
    sink.close(is_finished=False)


def test_resume_leaves_no_repeated_and_no_lost_steps(opened, tmp_path):
    """The first process wrote up to step 5; the checkpoint is of step 3, whose held-out images are still missing."""
    first, _ = opened("tensorboard")
    for step in range(6):
        first.log(step, {"reward_mean": float(step)})
    first.close(is_finished=False)
    second, _ = opened("tensorboard", rows=[(i, "reward_mean", float(i)) for i in range(1, 4)], first=3)
    second.log(4, {"reward_mean": 14.0})
    second.close(is_finished=True)
    assert scalars(tmp_path, "reward_mean") == [(0, 0), (1, 1), (2, 2), (3, 3), (4, 14)]


def test_a_training_that_starts_again_hides_the_one_before(opened, tmp_path):
    for value in (1.0, 2.0):
        sink, _ = opened("tensorboard")
        sink.log(0, {"reward_mean": value})
        sink.close(is_finished=True)
    assert scalars(tmp_path, "reward_mean") == [(0, 2.0)]


@pytest.mark.parametrize("is_main", [True, False])
@pytest.mark.parametrize("name", sorted(EXTRAS))
def test_a_tracker_that_is_not_installed_is_a_configuration_error(
    name, is_main, opened, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError) as caught:
        opened("tensorboard", name, is_main=is_main)
    command = install_command({"tensorboard": "training"}.get(name, name))
    assert str(caught.value) == (
        f"trackers: {name} is not installed. Run `{command}`, or remove {name} from the trackers."
    )
    assert list(tmp_path.iterdir()) == []


def test_each_tracker_is_in_the_extra_that_its_message_names() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    choice, _ = get_args(Params.model_fields["trackers"].annotation)  # tuple[Literal[...], ...]
    assert set(EXTRAS) == set(get_args(choice))
    for name, extra in EXTRAS.items():
        assert any(re.match(rf"{name}\b", package) for package in extras[extra]), (name, extra)


class Stub(ModuleType):
    """Part of wandb that the sink uses."""

    class Error(Exception):
        pass

    def __init__(self) -> None:
        super().__init__("wandb")
        self.__spec__ = ModuleSpec("wandb", None)
        self.calls: list[tuple[Any, ...]] = []
        self.api = SimpleNamespace(api_key="0" * 40)
        self.failure: Exception | None = None

    def init(self, **options: Any) -> Any:
        if self.failure is not None:
            raise self.failure
        self.calls.append(("init", options))
        return SimpleNamespace(
            config=SimpleNamespace(update=lambda values, **_: self.calls.append(("config", values))),
            log=lambda values, step: self.calls.append(("log", step, values)),
            finish=lambda: self.calls.append(("finish",)),
        )

    @staticmethod
    def Image(picture: Any) -> tuple[str, Any]:
        return ("picture", picture.shape)


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Stub:
    """Installed and logged in."""
    module = Stub()
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.delenv("WANDB_IDENTITY_TOKEN_FILE", raising=False)
    return module


def test_wandb_without_a_login_is_a_configuration_error(wandb, opened, tmp_path, monkeypatch):
    wandb.api.api_key = None
    with pytest.raises(ConfigError) as caught:
        opened("wandb")
    assert str(caught.value) == (
        "trackers: wandb is not logged in. Run `wandb login`, or set WANDB_MODE=offline and upload later with "
        "`wandb sync`, or remove wandb from the trackers."
    )
    assert wandb.calls == list(tmp_path.iterdir()) == []
    for name, value in (("WANDB_MODE", "offline"), ("WANDB_IDENTITY_TOKEN_FILE", "t")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            opened("wandb")
    assert [call[0] for call in wandb.calls] == ["init", "config"] * 2


def test_wandb_gets_the_run_its_configuration_numbers_and_images(wandb, opened, tmp_path):
    sink, _ = opened("wandb")
    sink.log(0, {"kl": 0.5}, np.zeros((2, 4, 6, 3), dtype=np.uint8))
    sink.close(is_finished=True)
    place = tmp_path / "chunk" / "seed-0"
    run_id = (place / "wandb_run_id.txt").read_text().strip()
    run = {"name": "chunk/seed-0", "dir": str(place), "id": run_id, "resume": "allow"}
    assert wandb.calls == [
        ("init", {"project": "chunk-grpo", **run}),
        ("config", CONFIG),
        ("log", 0, {"kl": 0.5, "heldout": [("picture", (4, 6, 3))] * 2}),
        ("finish",),
    ]


def test_a_resume_continues_the_wandb_run_and_a_new_start_does_not(wandb, opened):
    for first in (0, 3, 5, 0):
        opened("wandb", first=first)
    ids = [call[1]["id"] for call in wandb.calls if call[0] == "init"]
    assert ids[0] == ids[1] == ids[2] != ids[3]


@pytest.mark.parametrize(
    ("failure", "expected", "words"),
    [
        (Stub.Error("no answer"), ConfigError, r"wandb does not start \(no answer\). Run `wandb login`, or"),
        (OSError("full"), DataError, "chunk/seed-0: cannot write: full"),
        (ValueError("bug"), ValueError, "bug"),
    ],
)
def test_wandb_that_does_not_start_ends_the_run(failure, expected, words, wandb, opened, tmp_path):
    """The journal of an earlier run stays."""
    wandb.failure = failure
    with pytest.raises(expected, match=words):
        opened("wandb")
    assert not list(tmp_path.rglob(FILE))


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
        run = SimpleNamespace(
            info=SimpleNamespace(run_id=f"id{len(self.runs)}"), name=run_name, status="RUNNING"
        )
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
    sink, _ = opened("mlflow")
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


def test_the_environment_names_server_and_experiment(mlflow, opened, monkeypatch):
    monkeypatch.setitem(os.environ, "MLFLOW_TRACKING_URI", "http://server")
    monkeypatch.setitem(os.environ, "MLFLOW_EXPERIMENT_NAME", "/Users/me/own")
    monkeypatch.setitem(os.environ, "MLFLOW_HTTP_REQUEST_TIMEOUT", "5")
    opened("mlflow")
    assert (mlflow.uris, mlflow.artifacts) == (
        ["http://server"],
        {"/Users/me/own": None},
    )  # the server has a place
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "5"
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "1"


def test_a_resume_continues_the_mlflow_run_with_each_value_once(mlflow, opened):
    picture = np.zeros((1, 4, 6, 3), dtype=np.uint8)
    first, _ = opened("mlflow")
    for step in range(6):
        first.log(step, {"reward_mean": float(step)}, picture)
    first.close(is_finished=False)
    assert mlflow.runs["id0"].status == "KILLED"
    second, _ = opened("mlflow", rows=[(i, "reward_mean", float(i)) for i in range(1, 4)], first=3)
    assert mlflow.runs["id0"].status == "RUNNING"
    for step in range(4, 8):
        second.log(step, {"reward_mean": 10.0 + step}, picture)
    expected = [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 16), (7, 17)]
    assert mlflow.values("id0", "reward_mean") == expected
    assert [step for _, step, _ in mlflow.runs["id0"].images] == list(range(8))
    opened("mlflow")  # a training that starts again
    del mlflow.runs["id1"]
    opened("mlflow", first=2)  # whose run was deleted
    assert list(mlflow.runs) == ["id0", "id1"] and not mlflow.runs["id1"].data.metrics


def test_values_that_mlflow_does_not_take_wait(mlflow, opened, monkeypatch, caplog):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("chunk_grpo.training.sinks.time.monotonic", lambda: clock.now)
    picture = np.zeros((1, 4, 6, 3), dtype=np.uint8)
    sink, _ = opened("mlflow")
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
    assert mlflow.runs["id0"].images == [("heldout/00", 5, (4, 6, 3))]
    mlflow.failure = ConnectionError("gone")
    sink.close(is_finished=True)
    assert (len(caplog.records), mlflow.runs["id0"].status) == (2, "RUNNING")


def test_mlflow_that_does_not_start_ends_the_run(mlflow, opened, tmp_path):
    mlflow.failure = MLflowError("no\nanswer.")
    with pytest.raises(ConfigError) as caught:
        opened("mlflow")
    assert str(caught.value) == (
        "trackers: mlflow does not start (no answer). Start its server, or correct MLFLOW_TRACKING_URI, or unset it to "
        "write logs/mlflow.db, or remove mlflow from the trackers."
    )
    assert not list(tmp_path.rglob(FILE))
