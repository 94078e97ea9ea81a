"""Checkpoints are whole or not there, and only our own are read."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from chunk_grpo.errors import DataError
from chunk_grpo.training.checkpoint import TrainingState, load_checkpoint, save_checkpoint

ROOT = Path(__file__).parents[2]


def trained_state(iteration: int) -> TrainingState:
    """The state of a real optimiser after a step."""
    network = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.1)
    network(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    rows = [(iteration, "reward_mean", 0.1), (iteration, "kl", 1e-300)]
    return TrainingState(iteration, network.state_dict(), optimizer.state_dict(), rows)


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "seed-0.pt"
    assert load_checkpoint(path) is None
    state = trained_state(7)
    save_checkpoint(path, state)
    again = load_checkpoint(path)
    assert again is not None
    assert (again.iteration, again.rows) == (7, state.rows)
    assert all(torch.equal(again.network[name], value) for name, value in state.network.items())
    moments = state.optimizer["state"]
    assert len(moments) == 2
    for number, moment in moments.items():
        for name, value in moment.items():
            assert torch.equal(again.optimizer["state"][number][name], value)
    assert again.optimizer["param_groups"] == state.optimizer["param_groups"]
    assert [entry.name for entry in path.parent.iterdir()] == ["seed-0.pt"]


KILLED = """
import os, signal, sys
from pathlib import Path
import torch
from chunk_grpo.training import checkpoint

def die(descriptor):  # the bytes are written, the file is not yet in place
    os.kill(os.getpid(), signal.SIGKILL)

checkpoint.os.fsync = die
checkpoint.save_checkpoint(Path(sys.argv[1]), checkpoint.TrainingState(8, {"w": torch.ones(100000)}, {}))
"""


def test_a_kill_in_mid_save_leaves_the_older_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "seed-0.pt"
    save_checkpoint(path, trained_state(7))
    before = path.read_bytes()
    command = [sys.executable, "-c", KILLED, str(path)]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "seed-0.pt.partial").stat().st_size > 0  # it died where it should
    assert path.read_bytes() == before
    state = load_checkpoint(path)
    assert state is not None and state.iteration == 7
    save_checkpoint(path, trained_state(8))
    assert [entry.name for entry in tmp_path.iterdir()] == ["seed-0.pt"]


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_damaged_checkpoint_is_named_with_a_way_out(share: float, tmp_path: Path) -> None:
    path = tmp_path / "seed-0.pt"
    save_checkpoint(path, trained_state(7))
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(DataError) as caught:
        load_checkpoint(path)
    assert str(caught.value).startswith(f"{path}: not a readable checkpoint (")
    assert str(caught.value).endswith(f"; delete {tmp_path} to train from the start")


@pytest.mark.parametrize("content", [{"iteration": 3}, [1, 2], {"format": "another/1"}])
def test_a_foreign_checkpoint_is_refused(content: object, tmp_path: Path) -> None:
    path = tmp_path / "seed-0.pt"
    torch.save(content, path)
    with pytest.raises(DataError) as caught:
        load_checkpoint(path)
    assert str(caught.value) == (
        f"{path}: not a checkpoint of the format chunk_grpo.training/1; delete {tmp_path} to train from the start"
    )


class Harmful:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch harmed",)


def test_a_checkpoint_cannot_run_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"format": "chunk_grpo.training/1", "network": Harmful()}, "seed-0.pt")
    with pytest.raises(DataError, match="not a readable checkpoint"):
        load_checkpoint(Path("seed-0.pt"))
    assert not Path("harmed").exists()
