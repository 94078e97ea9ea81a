"""Checkpoints of sharded weights: a folder beside the sealed file, which decides whether there is a checkpoint.

The mesh here has one process; tests/training/test_processes.py trains and resumes with two.
"""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, distributed
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from chunk_grpo.errors import DataError
from chunk_grpo.families.sharding import local_shard
from chunk_grpo.training import sharded_files
from chunk_grpo.training.checkpoint import CheckpointStore, TrainingState

ROOT = Path(__file__).parents[2]
FILES = ["__0_0.distcp"]


@pytest.fixture(scope="module")
def mesh() -> Iterator[DeviceMesh]:
    distributed.init_process_group("gloo", rank=0, world_size=1, store=distributed.HashStore())
    yield init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


def trained(mesh: DeviceMesh | None) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """A network, sharded if there is a mesh, after an optimiser step."""
    torch.manual_seed(0)
    network = torch.nn.Linear(300, 200)
    if mesh is not None:
        fully_shard(network, mesh=mesh)
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.1)
    network(torch.ones(1, 300)).sum().backward()
    optimizer.step()
    return network, optimizer


def state_of(mesh: DeviceMesh, iteration: int) -> TrainingState:
    network, optimizer = trained(mesh)
    extra = {"average": [value * iteration for value in network.parameters()], "plan": (2, 3)}
    return TrainingState(iteration, dict(network.state_dict()), optimizer.state_dict(), [], extra)


def store_in(folder: Path, keep: int = 5) -> CheckpointStore:
    return CheckpointStore(folder, "code-1", keep)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def whole(value: Tensor) -> Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


@pytest.mark.parametrize("is_sharded", [True, False])
def test_sharded_tensors_come_back_sharded_or_whole(is_sharded, mesh, tmp_path):
    state = state_of(mesh, 3)
    store_in(tmp_path).save(state)
    assert names(tmp_path) == ["iteration-000003.pt", "iteration-000003.shards-1"]
    assert names(tmp_path / "iteration-000003.shards-1") == FILES
    assert (tmp_path / "iteration-000003.pt").stat().st_size < 10_000  # a weight alone has 240 kB
    found = store_in(tmp_path).latest()
    assert found is not None
    network, _ = trained(mesh if is_sharded else None)
    for name, like in network.state_dict().items():
        value = local_shard(torch.zeros_like(like), found.network[name])
        assert isinstance(value, DTensor) == is_sharded
        assert torch.equal(whole(value), whole(state.network[name]))
    for index, held in state.optimizer["state"].items():
        again = found.optimizer["state"][index]
        assert again["step"] == held["step"]
        assert torch.equal(
            local_shard(torch.zeros(held["exp_avg"].shape), again["exp_avg"]), whole(held["exp_avg"])
        )
    averages = zip(found.extra["average"], state.extra["average"], strict=True)
    assert all(torch.equal(local_shard(torch.zeros(a.shape), a), whole(b)) for a, b in averages)
    assert found.extra["plan"] == (2, 3)


def test_a_flipped_bit_in_a_shard_is_found(mesh, tmp_path, caplog):
    for iteration in (1, 2):
        store_in(tmp_path).save(state_of(mesh, iteration))
    for name in FILES:
        path = tmp_path / "iteration-000002.shards-1" / name
        content = path.read_bytes()
        path.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
        found = store_in(tmp_path).latest()
        assert found is not None and found.iteration == 1
        assert f"iteration-000002.shards-1/{name} is missing or damaged" in caplog.text
        path.write_bytes(content)
    found = store_in(tmp_path).latest()
    assert found is not None and found.iteration == 2


def test_only_kept_checkpoints_have_shards(mesh, tmp_path):
    store = store_in(tmp_path, keep=2)
    for iteration in (1, 2, 2, 3):  # stopped within iteration 3, iteration 2 is saved again
        store.save(state_of(mesh, iteration))
    assert names(tmp_path) == [
        "iteration-000002.pt",
        "iteration-000002.shards-2",
        "iteration-000003.pt",
        "iteration-000003.shards-1",
    ]


KILLED = """
import os, signal, sys
from pathlib import Path
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from tests.training.test_sharded_checkpoint import state_of, store_in

def deadly(function):
    def counted(*args, **kwargs):
        global calls_left
        calls_left -= 1
        if calls_left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)
    return counted

for folder in map(Path, sys.argv[1:]):
    if child := os.fork():
        print(os.waitpid(child, 0)[1], flush=True)
        continue
    distributed.init_process_group("gloo", rank=0, world_size=1, store=distributed.HashStore())
    mesh = init_device_mesh("cpu", (1,))
    store_in(folder).save(state_of(mesh, 7))
    calls_left = int(folder.name)
    for name in ("fsync", "replace", "unlink", "rename", "rmdir"):
        setattr(os, name, deadly(getattr(os, name)))
    store_in(folder, keep=1).save(state_of(mesh, 7))
    os._exit(0)
"""


@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(mesh, tmp_path):
    """Iteration 7 is saved again, as after a stop within iteration 8, and killed at each call that changes files."""
    folders = [tmp_path / str(number) for number in range(1, 14)]
    command = [sys.executable, "-c", KILLED, *map(str, folders)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        command, env=environment, check=True, timeout=120, stdout=subprocess.PIPE, text=True
    )
    kills = [int(status) == signal.SIGKILL for status in ended.stdout.split()]
    assert kills == sorted(kills, reverse=True) and kills[5] and not kills[-1]
    for folder in folders:
        store = store_in(folder, keep=1)
        found = store.latest()
        assert found is not None and found.iteration == 7
        store.save(state_of(mesh, 8))
        assert names(folder) == ["iteration-000008.pt", "iteration-000008.shards-1"]


def test_a_disk_without_room_for_the_shards_leaves_the_older_checkpoint(mesh, tmp_path, monkeypatch):
    store = store_in(tmp_path, keep=1)
    store.save(state_of(mesh, 1))

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(sharded_files.FileSystemWriter, "write_data", full)
        with pytest.raises(
            DataError, match=r"000002.pt: the checkpoint cannot be saved \(No space left on device\)"
        ):
            store.save(state_of(mesh, 2))
    found = store_in(tmp_path).latest()
    assert found is not None and found.iteration == 1
    store.save(state_of(mesh, 3))
    assert names(tmp_path) == ["iteration-000003.pt", "iteration-000003.shards-1"]
