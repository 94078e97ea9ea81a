"""Tensors in safetensors files."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from chunk_grpo.artifacts import output_dir
from chunk_grpo.artifacts.tensors import read_tensors, write_tensors
from chunk_grpo.errors import DataError


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    embeds = torch.arange(12, dtype=torch.bfloat16).reshape(3, 4)
    path = tmp_path / "embeddings.safetensors"
    write_tensors({"prompt_embeds": embeds.T, "pooled": embeds}, path)
    tensors = read_tensors(path, ["prompt_embeds"])
    assert list(tensors) == ["prompt_embeds"]
    assert tensors["prompt_embeds"].dtype == torch.bfloat16
    assert torch.equal(tensors["prompt_embeds"], embeds.T)


def test_a_cut_off_file_and_a_missing_tensor(tmp_path: Path) -> None:
    path = tmp_path / "embeddings.safetensors"
    write_tensors({"pooled": torch.zeros(100)}, path)
    with pytest.raises(
        DataError, match=r"must hold the tensor 'prompt_embeds', got pooled\. Delete it and run"
    ):
        read_tensors(path, ["pooled", "prompt_embeds"])
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(DataError, match=r"corrupt, cut off, or no safetensors file \("):
        read_tensors(path, ["pooled"])


@contextmanager
def small_files() -> Iterator[None]:
    """Inside, this process can write no file above 4 KiB, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_takes_no_more(tmp_path: Path) -> None:
    """safetensors has one error class of its own for a full disk and for a damaged file."""
    tensors = {"pooled": torch.zeros(10_000)}
    reason = r": cannot write: File too large\.$"
    with small_files(), pytest.raises(DataError, match=rf"embeddings\.safetensors{reason}"):
        write_tensors(tensors, tmp_path / "embeddings.safetensors")
    with (
        small_files(),
        pytest.raises(DataError, match=rf"policy{reason}"),
        output_dir(tmp_path / "policy") as draft,
    ):
        save_file(tensors, draft / "model.safetensors")
    assert list(tmp_path.iterdir()) == []
