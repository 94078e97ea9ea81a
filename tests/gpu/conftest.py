"""Tests that need a CUDA device: `make gpu`. Without one they can be run on a stand-in, which exercises their code:

    TEST_DEVICE=cpu python -m pytest -m gpu tests/gpu
    TEST_DEVICE=pretend python -m pytest -m gpu tests/gpu

`pretend` is the accelerator of tests/pretended. Tests for two cards are left out where there is one.
"""

import os
from collections.abc import Iterator

import pytest
import torch

from tests.training.conftest import prompts as prompts  # a fixture

DEVICE = os.environ.get("TEST_DEVICE", "cuda")
if DEVICE == "pretend":
    import tests.pretended.device  # noqa: F401  # registers the device before the process's first backward pass


@pytest.fixture(scope="session")
def device() -> Iterator[str]:
    """The device under test, float32 in full precision and reproducible kernels on it."""
    assert DEVICE != "cuda" or torch.cuda.is_available(), "no CUDA device; TEST_DEVICE=cpu runs the tests without"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read at the first product; reproducible sums need it
        patch.setattr(torch.backends.cudnn, "allow_tf32", False)
        if DEVICE == "pretend":
            from tests.pretended.conftest import use_the_device

            use_the_device(patch)
        yield DEVICE


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what this machine cannot run."""
    enough = {"cuda": torch.cuda.device_count() >= 2, "cpu": True}.get(DEVICE, False)
    left_out = [] if enough else [item for item in items if item.path.name == "test_two_cards.py"]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
