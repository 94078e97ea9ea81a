"""Optimisers: close to AdamW, and resumed to the same bits in one process and in two."""

import io
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from chunk_grpo.errors import ConfigError
from chunk_grpo.families.prompts import PromptSet
from chunk_grpo.training import optimizers
from chunk_grpo.training.optimizers import OptimizerName, make_optimizer, require_optimizer
from tests.training.conftest import CHUNK_WS
from tests.training.worker import Job, do, result, run_pair

NAMES: tuple[OptimizerName, ...] = ("adamw", "adamw-fused", "adamw-8bit")
SHAPES = ((17, 256), (4, 3, 512), (40, 300), (8192,))
"""Rows of whole blocks, twice; rows of parts of blocks; no rows."""

WHOLE: dict[str, Any] = {"iterations": 2, "prompts_per_iteration": 4, "group_size": 2, "checkpoint_every": 1}
SHARDED = {**WHOLE, "shard_weights": True}


@pytest.fixture(autouse=True)
def uncompiled() -> Iterator[None]:
    """Torch compiles nothing here: the 8-bit step would take seconds for each shape of a weight."""
    with torch.compiler.set_stance("force_eager"):
        yield


def weights() -> list[nn.Parameter]:
    stream = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=stream)) for shape in SHAPES]


def steps(parameters: list[nn.Parameter], optimizer: torch.optim.Optimizer, count: int, seed: int) -> None:
    stream = torch.Generator().manual_seed(seed)
    for _ in range(count):
        for weight in parameters:
            weight.grad = torch.randn(weight.shape, generator=stream)
        optimizer.step()


def made(name: OptimizerName, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return make_optimizer(name, parameters, 1e-3, 1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_a_saved_state_goes_on_to_the_same_bits(name: OptimizerName) -> None:
    own, others = weights(), weights()
    first, file = made(name, own), io.BytesIO()
    steps(own, first, 3, 1)
    torch.save((first.state_dict(), own), file)
    steps(own, first, 3, 2)
    file.seek(0)
    state, values = torch.load(file, weights_only=True)
    for weight, value in zip(others, values, strict=True):
        weight.data.copy_(value)
    second = made(name, others)
    second.load_state_dict(state)
    steps(others, second, 3, 2)
    assert all(map(torch.equal, own, others))


def test_eight_bits_a_moment() -> None:
    """Two moments of a byte a weight and 4 a block of 256 where rows are whole blocks; AdamW's steps within a third."""
    exact, coarse = weights(), weights()
    start = [weight.detach().clone() for weight in exact]
    steps(exact, made("adamw", exact), 5, 1)
    optimizer = made("adamw-8bit", coarse)
    steps(coarse, optimizer, 5, 1)
    for number, weight in enumerate(coarse):
        moments = [optimizer.state_dict()["state"][number][name] for name in ("exp_avg", "exp_avg_sq")]
        if number < 2:
            tensors = [tensor for moment in moments for tensor in moment.values()]
            assert sum(tensor.nbytes for tensor in tensors) == 2 * (1 + 4 / 256) * weight.numel()
            moved = exact[number] - start[number]
            assert (weight - exact[number]).norm() < moved.norm() / 3
        else:
            assert all(moment.dtype == torch.float32 for moment in moments)
            assert torch.allclose(weight, exact[number], rtol=0, atol=1e-5)


def test_processes_with_few_or_no_rows_save_their_state() -> None:
    """17 rows on 8 processes: three each, the sixth has two and the eighth none. Scales are sharded as the weights."""
    for rank, rows in ((0, 3), (5, 2), (7, 0)):
        distributed.init_process_group("fake", rank=rank, world_size=8, store=FakeStore())
        try:
            network = nn.Linear(512, 17, bias=False)
            fully_shard(network, mesh=init_device_mesh("cpu", (8,)))
            optimizer = made("adamw-8bit", list(network.parameters()))
            network.weight.grad = torch.ones_like(network.weight)
            optimizer.step()
            moment = optimizer.state_dict()["state"][0]["exp_avg_sq"]
            assert all(isinstance(value, DTensor) for value in moment.values())
            assert (moment["codes"].shape, moment["scales"].shape) == ((17, 512), (17, 2))
            assert moment["codes"].to_local().shape == (rows, 512)
            assert moment["scales"].to_local().shape == (rows, 2)
        finally:
            distributed.destroy_process_group()


@pytest.fixture(scope="module")
def pair(prompts: PromptSet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two processes that shard the weights: undisturbed, stopped and resumed."""
    folder = tmp_path_factory.mktemp("pair")
    jobs = {}
    for name in NAMES[1:]:
        job = Job(CHUNK_WS, {**SHARDED, "optimizer": name}, f"{name}-whole")
        jobs[f"{name}-whole"] = job
        jobs[f"{name}-stopped"] = replace(job, folder=f"{name}-stopped", stop_at=21)
        jobs[f"{name}-resumed"] = replace(job, folder=f"{name}-stopped")
    run_pair(jobs, prompts, folder, compiles=False)
    return folder


@pytest.mark.parametrize("name", NAMES[1:])
@pytest.mark.slow
def test_two_processes_and_one_go_on_from_sharded_states(name, pair, prompts, tmp_path):
    """Two to the same bits."""
    for rank in range(2):
        whole, stopped, resumed = (result(pair, f"{name}-{which}", rank) for which in ("whole", "stopped", "resumed"))
        assert stopped.error.startswith("TransientError: stopped after iteration 1 of 2"), stopped.error
        assert whole.error == resumed.error == ""
        assert resumed.has_weights_of(whole)
    shutil.copytree(pair / f"{name}-stopped-left", tmp_path / "left")
    found = do(Job(CHUNK_WS, {**WHOLE, "optimizer": name}, "left"), prompts, tmp_path)
    assert found.error == ""
    assert found.metric("grad_norm") == pytest.approx(whole.metric("grad_norm"), rel=1e-3)


def test_without_its_package_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao.optim", None)
    optimizers._eight_bit.cache_clear()
    require_optimizer("adamw-fused")
    with pytest.raises(ConfigError, match=r"train\.optimizer: adamw-8bit needs torchao.*pip install 'torchao>=0\.18"):
        require_optimizer("adamw-8bit")


@pytest.mark.slow
def test_the_compiled_step_is_the_plain_one() -> None:
    plain, compiled = weights()[:1], weights()[:1]
    steps(plain, made("adamw-8bit", plain), 2, 1)
    with torch.compiler.set_stance("default"):
        steps(compiled, made("adamw-8bit", compiled), 2, 1)
    assert torch.allclose(plain[0], compiled[0], rtol=0, atol=1e-4)
