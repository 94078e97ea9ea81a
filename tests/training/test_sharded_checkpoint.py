"""Checkpoints of sharded weights.

The mesh here has one process; tests/training/test_processes.py trains and resumes with two.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from chunk_grpo.families.sharding import local_shard
from chunk_grpo.training import state_files
from chunk_grpo.training.checkpoint import TrainingState
from chunk_grpo.training.state_files import MANIFEST, STATE, WHOLE
from tests.checkpoints import save, store_in
from tests.training.test_checkpoint import kills_at_each_call, names

FILES = [MANIFEST, "part-0.safetensors", STATE, WHOLE]


def one_process() -> DeviceMesh:
    distributed.init_process_group("gloo", rank=0, world_size=1, store=distributed.HashStore())
    return init_device_mesh("cpu", (1,))


@pytest.fixture(scope="module")
def mesh() -> Iterator[DeviceMesh]:
    yield one_process()
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


def whole(value: Tensor) -> Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


@pytest.mark.parametrize("is_sharded", [True, False])
def test_sharded_tensors_come_back_sharded_or_whole(is_sharded, mesh, tmp_path):
    state = state_of(mesh, 3)
    save(store_in(tmp_path), state)
    assert names(tmp_path / "iteration-000003") == FILES
    assert (tmp_path / "iteration-000003" / WHOLE).stat().st_size < 10_000  # a weight alone has 240 kB
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
        assert torch.equal(local_shard(torch.zeros(held["exp_avg"].shape), again["exp_avg"]), whole(held["exp_avg"]))
    averages = zip(found.extra["average"], state.extra["average"], strict=True)
    assert all(torch.equal(local_shard(torch.zeros(a.shape), a), whole(b)) for a, b in averages)
    assert found.extra["plan"] == (2, 3)


def test_any_number_of_processes_reads_the_parts_of_any_other(tmp_path, monkeypatch):
    """Rows of a matrix, in 3 files, as each of 4 processes needs them."""
    matrix = torch.arange(70.0).reshape(10, 7)
    pieces: dict[str, Any] = {}
    for number, (first, last) in enumerate([(0, 4), (4, 8), (8, 10)]):
        pieces[f"part-{number}.safetensors"] = ([first, 0], [last - first, 7])
        state_files.write_tensors({"w": matrix[first:last]}, tmp_path / f"part-{number}.safetensors")
    content = {"state": {"tensor": "w"}, "sharded": {"w": ([10, 7], pieces)}}
    (tmp_path / STATE).write_text(json.dumps(content))
    stored = state_files.read_state(tmp_path)
    for first, last in [(0, 3), (3, 6), (6, 9), (9, 10), (10, 10)]:
        place = ([first, 0], [last - first, 7])
        monkeypatch.setattr(state_files, "held", lambda tensor, place=place: (tensor, place))
        assert torch.equal(stored.part(torch.zeros(last - first, 7)), matrix[first:last])


def test_a_flipped_bit_in_a_part_is_found(mesh, tmp_path, caplog):
    for iteration in (1, 2):
        save(store_in(tmp_path), state_of(mesh, iteration))
    path = tmp_path / "iteration-000002" / "part-0.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    found = store_in(tmp_path).latest()
    assert found is not None and found.iteration == 1
    assert f"iteration-000002: {path.name} is damaged" in caplog.text


def prepared(folder: Path) -> Callable[[], None]:
    """Iteration 7 is saved again, as after a stop within iteration 8."""
    mesh = one_process()
    save(store_in(folder), state_of(mesh, 7))
    return lambda: save(store_in(folder, keep=1), state_of(mesh, 7))


@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(mesh, tmp_path):
    folders = [tmp_path / str(number) for number in range(1, 21)]
    assert kills_at_each_call("test_sharded_checkpoint", folders) >= 10
    for folder in folders:
        store = store_in(folder, keep=1)
        found = store.latest()
        assert found is not None and found.iteration == 7
        save(store, state_of(mesh, 8))
        assert names(folder) == ["iteration-000008"]
