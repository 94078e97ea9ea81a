"""What trackers wrote, read back with TensorBoard's own reader; Weights & Biases as a stand-in that records calls."""

import io
import subprocess
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from accelerate import PartialState
from accelerate.tracking import TensorBoardTracker
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer
from torch.utils.tensorboard import SummaryWriter

from chunk_grpo.errors import ConfigError, DataError
from chunk_grpo.training.trackers import Trackers, check_trackers

CONFIG = {"train": {"learning_rate": 1e-5, "plan": [2, 3]}, "seed": 0}
TensorBoard = Callable[..., Trackers]


@pytest.fixture
def tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TensorBoard:
    """Opens a run in TensorBoard, at step 0 or later."""
    # Files of one second and process are told apart by a counter, and read in the order of text: 10 before 9.
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(9))
    return lambda start_step=0: Trackers(["tensorboard"], tmp_path, "chunk/seed-0", CONFIG, start_step)


def read(folder: Path) -> EventAccumulator:
    events = EventAccumulator(str(folder / "chunk" / "seed-0"))
    events.Reload()
    return events


def scalars(folder: Path, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in read(folder).Scalars(tag)]


def test_numbers_are_read_back_as_they_were(tensorboard: TensorBoard, tmp_path: Path) -> None:
    trackers = tensorboard()
    trackers.log(0, {"heldout_reward": 0.25})
    trackers.log(1, {"reward/shapes-graded": np.float32(0.5), "trained_steps": 7})
    trackers.log(2, {"reward/shapes-graded": np.float64(0.75)})
    trackers.close()
    assert scalars(tmp_path, "heldout_reward") == [(0, 0.25)]
    assert scalars(tmp_path, "reward/shapes-graded") == [(1, 0.5), (2, 0.75)]
    assert scalars(tmp_path, "trained_steps") == [(1, 7.0)]


def test_what_was_logged_survives_a_kill(
    tensorboard: TensorBoard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush waits for the writer's thread, and for the buffers of stores that are no local disk."""
    flush, flushed = SummaryWriter.flush, []
    monkeypatch.setattr(SummaryWriter, "flush", lambda writer: (flush(writer), flushed.append(writer)))
    trackers = tensorboard()
    at_start = len(flushed)
    trackers.log(1, {"kl": 0.5})
    assert len(flushed) == at_start + 1
    trackers.log_images(1, "heldout", np.zeros((1, 4, 4, 3), dtype=np.uint8))
    assert len(flushed) == at_start + 2
    assert scalars(tmp_path, "kl") == [(1, 0.5)]
    assert len(read(tmp_path).Images("heldout")) == 1
    trackers.close()


def test_pictures_are_read_back_side_by_side(tensorboard: TensorBoard, tmp_path: Path) -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (2, 5, 7, 3), dtype=np.uint8)
    trackers = tensorboard()
    trackers.log_images(3, "heldout", pictures)
    trackers.close()
    (event,) = read(tmp_path).Images("heldout")
    assert (event.step, event.width, event.height) == (3, 14, 5)
    shown = np.asarray(Image.open(io.BytesIO(event.encoded_image_string)))
    assert np.array_equal(shown, np.concatenate(list(pictures), axis=1))


def test_the_configuration_is_beside_them_as_text(tensorboard: TensorBoard, tmp_path: Path) -> None:
    tensorboard().close()
    (event,) = read(tmp_path).Tensors("config/text_summary")
    text = event.tensor_proto.string_val[0].decode()
    assert '"learning_rate": 1e-05' in text
    assert all(line.startswith("    ") for line in text.splitlines())
    # accelerate would have made a folder, so a run, for it.
    assert [path for path in (tmp_path / "chunk" / "seed-0").iterdir() if path.is_dir()] == []


def test_after_a_resume_no_step_stands_twice_and_none_of_the_lost_ones_stays(
    tensorboard: TensorBoard, tmp_path: Path
) -> None:
    """The checkpoint is of step 2; the process wrote up to step 5 before it died, and the next one gets to step 4."""
    first = tensorboard()
    for step in range(6):
        first.log(step, {"reward_mean": float(step)})
    first.close()
    second = tensorboard(start_step=3)
    for step in (3, 4):
        second.log(step, {"reward_mean": 10.0 + step})
    second.close()
    assert scalars(tmp_path, "reward_mean") == [(0, 0), (1, 1), (2, 2), (3, 13), (4, 14)]


def test_a_training_that_starts_again_hides_the_one_before(tensorboard: TensorBoard, tmp_path: Path) -> None:
    for value in (1.0, 2.0):
        trackers = tensorboard()
        trackers.log(0, {"reward_mean": value})
        trackers.close()
    assert scalars(tmp_path, "reward_mean") == [(0, 2.0)]


def test_steps_do_not_go_back(tensorboard: TensorBoard) -> None:
    trackers = tensorboard(start_step=3)
    with pytest.raises(ValueError, match="step: must not go back below 3, got 2"):
        trackers.log(2, {"kl": 0.0})
    trackers.log(5, {"kl": 0.0})
    trackers.log(5, {"clip_fraction": 0.0})
    with pytest.raises(ValueError, match="step: must not go back below 5, got 4"):
        trackers.log_images(4, "heldout", np.zeros((1, 4, 4, 3), dtype=np.uint8))
    trackers.close()
    with pytest.raises(ValueError, match="start_step: must be at least 0, got -1"):
        tensorboard(start_step=-1)


@pytest.mark.parametrize(
    "images",
    [
        np.zeros((4, 4, 3), dtype=np.uint8),
        np.zeros((1, 3, 4, 4), dtype=np.uint8),
        np.zeros((0, 4, 4, 3), dtype=np.uint8),
        np.zeros((1, 4, 4, 3), dtype=np.float32),
    ],
)
def test_other_pictures_are_refused(images: Any) -> None:
    with pytest.raises(ValueError, match=r"images: must be uint8 \[N, H, W, 3\] and not empty, got"):
        Trackers([], Path("unused"), "run", {}).log_images(0, "heldout", images)


def test_a_closed_run_writes_nothing_more(tensorboard: TensorBoard, tmp_path: Path) -> None:
    trackers = tensorboard()
    trackers.log(1, {"kl": 0.5})
    trackers.close()
    trackers.close()
    trackers.log(2, {"kl": 0.75})
    assert scalars(tmp_path, "kl") == [(1, 0.5)]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match="cannot be written"):
        Trackers(["tensorboard"], tmp_path / "file", "run", CONFIG)


def test_without_trackers_nothing_is_imported_or_written(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from chunk_grpo.training.trackers import Trackers;"
        "t = Trackers([], Path('runs'), 'run', {'a': 1}); t.log(1, {'kl': 0.5}); t.close();"
        "print([n for n in ('torch', 'accelerate', 'tensorboard', 'wandb') if n in sys.modules])"
    )
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(root)!r}); {program}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_tracker_that_is_not_installed_is_a_configuration_error(
    name: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError) as caught:
        Trackers(["tensorboard", name], tmp_path / "runs", "run", CONFIG)
    assert str(caught.value) == (
        f"trackers: {name} is not installed. Run `pip install {name}`, or remove {name} from the trackers."
    )
    assert not (tmp_path / "runs").exists()


def test_an_unknown_tracker_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="unknown tracker 'mlflow'; known are tensorboard, wandb"):
        check_trackers(["mlflow"])  # type: ignore[list-item]


class StandIn(ModuleType):
    """As much of wandb as accelerate and the trackers touch."""

    class Error(Exception):
        pass

    def __init__(self) -> None:
        super().__init__("wandb")
        self.__spec__ = ModuleSpec("wandb", None)
        self.calls: list[tuple[Any, ...]] = []
        self.api = SimpleNamespace(api_key=None)
        self.failure: Exception | None = None
        self.config = SimpleNamespace(update=lambda values, **_: self.calls.append(("config", values)))

    def init(self, **options: Any) -> Any:
        if self.failure is not None:
            raise self.failure
        self.calls.append(("init", options))
        return SimpleNamespace(
            log=lambda values, step: self.calls.append(("log", step, values)),
            finish=lambda: self.calls.append(("finish",)),
        )

    @staticmethod
    def Image(picture: Any) -> tuple[str, Any]:
        return ("picture", picture.shape)


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """Installed, and not logged in."""
    module = StandIn()
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.delenv("WANDB_IDENTITY_TOKEN_FILE", raising=False)
    return module


def test_wandb_without_a_login_is_a_configuration_error(wandb: StandIn, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        Trackers(["wandb"], tmp_path / "runs", "run", CONFIG)
    assert str(caught.value) == (
        "trackers: wandb is not logged in. Run `wandb login`, or set WANDB_MODE=offline and upload later with "
        "`wandb sync`, or remove wandb from the trackers."
    )
    assert wandb.calls == []
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("how", ["key", "offline", "token"])
def test_a_login_or_the_offline_mode_is_enough(
    how: str, wandb: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "key":
        wandb.api.api_key = "0" * 40
    else:
        name, value = {"offline": ("WANDB_MODE", "offline"), "token": ("WANDB_IDENTITY_TOKEN_FILE", "t")}[how]
        monkeypatch.setenv(name, value)
    check_trackers(["wandb"])


def test_wandb_gets_the_run_its_configuration_numbers_and_pictures(wandb: StandIn, tmp_path: Path) -> None:
    wandb.api.api_key = "0" * 40
    trackers = Trackers(["wandb"], tmp_path, "chunk/seed-0", CONFIG)
    trackers.log(1, {"kl": 0.5})
    trackers.log_images(1, "heldout", np.zeros((2, 4, 6, 3), dtype=np.uint8))
    trackers.close()
    place = tmp_path / "chunk" / "seed-0"
    run_id = (place / "wandb_run_id.txt").read_text().strip()
    run = {"name": "chunk/seed-0", "dir": str(place), "id": run_id, "resume": "allow"}
    assert wandb.calls == [
        ("init", {"project": "chunk-grpo", **run}),
        ("config", CONFIG),
        ("log", 1, {"kl": 0.5}),
        ("log", 1, {"heldout": [("picture", (4, 6, 3))] * 2}),
        ("finish",),
    ]


def test_a_resume_goes_on_with_the_run_and_a_new_start_does_not(wandb: StandIn, tmp_path: Path) -> None:
    wandb.api.api_key = "0" * 40
    for start_step in (0, 3, 5, 0):
        Trackers(["wandb"], tmp_path, "run", CONFIG, start_step).close()
    ids = [call[1]["id"] for call in wandb.calls if call[0] == "init"]
    assert ids[0] == ids[1] == ids[2] != ids[3]


@pytest.mark.parametrize(
    "failure", [StandIn.Error("no answer from api.wandb.ai"), OSError("full"), ValueError("bug")]
)
def test_wandb_that_does_not_start_leaves_nothing_open(
    failure: Exception, wandb: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb.api.api_key, wandb.failure = "0" * 40, failure
    closed: list[str] = []
    monkeypatch.setattr(TensorBoardTracker, "finish", lambda tracker: closed.append(tracker.run_name))
    expected, words = {
        "Error": (
            ConfigError,
            r"wandb does not start \(no answer from api.wandb.ai\). Run `wandb login`, or",
        ),
        "OSError": (DataError, r"run: cannot be written \(full\)"),
        "ValueError": (ValueError, "bug"),
    }[type(failure).__name__]
    with pytest.raises(expected, match=words):
        Trackers(["tensorboard", "wandb"], tmp_path, "run", CONFIG)
    assert closed == ["run"]


def test_of_several_processes_one_writes(
    wandb: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb.api.api_key = "0" * 40
    monkeypatch.setattr(PartialState, "is_main_process", False)
    trackers = Trackers(["tensorboard", "wandb"], tmp_path, "run", CONFIG)
    trackers.log(1, {"kl": 0.5})
    trackers.close()
    assert wandb.calls == []
    assert list(tmp_path.iterdir()) == []
