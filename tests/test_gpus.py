"""A GPU that the driver lists and torch does not see, with a program in the place of nvidia-smi."""

from pathlib import Path

import pytest
import torch

from chunk_grpo.errors import ConfigError
from chunk_grpo.gpus import DriverCard, driver_cards, has_gpu

LISTED = "NVIDIA GeForce RTX 4090, 24564, 580.159"


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program nvidia-smi that lists one GPU, which torch does not see."""
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho '{LISTED}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    return program


@pytest.mark.parametrize(
    ("build", "cause"),
    [
        (None, "is a build without CUDA; install one with CUDA"),
        ("13.0", "is built with CUDA 13.0, which may need a newer driver than this one"),
    ],
)
@pytest.mark.usefixtures("driver")
def test_a_gpu_that_torch_does_not_see_is_an_error(build, cause, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", build)
    with pytest.raises(ConfigError) as raised:
        has_gpu()
    assert "the driver lists 'NVIDIA GeForce RTX 4090', which torch does not see" in str(raised.value)
    assert cause in str(raised.value)
    assert "set CUDA_VISIBLE_DEVICES= to use the CPU" in str(raised.value)


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize("hiding", ["", "-1", "NoDevFiles"])
def test_a_gpu_may_be_hidden(hiding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hiding)
    assert not has_gpu()


def test_a_machine_without_gpus(driver: Path) -> None:
    driver.write_text("#!/bin/sh\necho 'No devices were found'\nexit 6\n")
    assert driver_cards() == []
    assert not has_gpu()


def test_the_drivers_cards(driver: Path) -> None:
    assert driver_cards() == [DriverCard("NVIDIA GeForce RTX 4090", 24564 / 1024, "580.159")]
    driver.write_text("#!/bin/sh\necho 'NVIDIA GB10, [N/A], 580.95'\n")
    assert driver_cards() == [DriverCard("NVIDIA GB10", None, "580.95")]
