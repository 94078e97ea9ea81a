"""`train.compile: auto` on the pretended accelerator: compiled blocks where torch can compile, and else not."""

import pytest
import torch

from chunk_grpo.errors import ConfigError
from chunk_grpo.families import compiling
from chunk_grpo.families.swapping import swap
from tests.planning.planned import edited, preset
from tests.pretended.device import DEVICE
from tests.training.conftest import two_blocks


def test_blocks_are_compiled_by_default_on_an_accelerator_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "try_compiler", lambda device: None)  # torch compiles nothing for it
    network = two_blocks().transformer
    cpu = torch.device("cpu")
    assert [compiling.will_compile(wanted, network, DEVICE) for wanted in (True, False, "auto")] == [True, False, True]
    assert [compiling.will_compile(wanted, network, cpu) for wanted in (True, False, "auto")] == [True, False, False]
    swap(network, 1.0, cpu)
    assert not compiling.will_compile("auto", network, DEVICE)


def test_an_accelerator_without_a_compiler_trains_uncompiled(caplog: pytest.LogCaptureFixture) -> None:
    network = two_blocks().transformer
    assert not compiling.will_compile("auto", network, DEVICE)
    (said,) = (record.message for record in caplog.records if record.name == compiling.__name__)
    assert said.startswith("train.compile: torch cannot compile for pretend here (")
    assert said.endswith("Blocks run uncompiled")
    with pytest.raises(ConfigError, match="torch cannot compile for pretend here"):  # it was asked for
        compiling.will_compile(True, network, DEVICE)


def test_the_plan_counts_compiled_blocks_where_they_can_be() -> None:
    night = preset("night-24gb")
    assert night.train.compile == "auto" and night.compiles
    assert not edited(night, model={"base_precision": "int8"}).compiles
    swapped = edited(night, model={"block_swap": 0.5}, train={"gradient_checkpointing": True})
    assert not swapped.compiles
    assert not edited(night, train={"compile": False}).compiles
