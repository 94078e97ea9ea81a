"""A base model as small as a pipeline of diffusers can be."""

from pathlib import Path

import pytest

import chunk_grpo as cg
from tests.families.checkpoint_flux import random_pipeline


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a random FLUX of three blocks."""
    folder = tmp_path_factory.mktemp("library") / "model"
    random_pipeline().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def model(checkpoint: Path) -> cg.Model:
    return cg.load(str(checkpoint), height=32, width=32, max_sequence_length=8)
