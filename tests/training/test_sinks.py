"""Outputs of sinks: TensorBoard files by TensorBoard's reader, Weights & Biases by a recording stub."""

import io
import re
import sys
import tomllib
from collections.abc import Callable
from functools import partial
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
from chunk_grpo.training.journal import FILE
from chunk_grpo.training.sinks import MetricSink
from chunk_grpo.training.trackers import EXTRAS
from tests.conftest import ROOT

from .conftest import TRACKED, open_in

Open = Callable[..., list[MetricSink]]


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Open:
    # TensorBoard numbers the files of one second and reads them in the order of their names: 10 before 9.
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(9))
    return partial(open_in, tmp_path)


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
def test_a_tracker_that_is_not_installed_is_a_configuration_error(name, is_main, opened, tmp_path, monkeypatch):
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
        ("config", TRACKED),
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
