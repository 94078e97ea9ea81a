"""Tensors in safetensors files."""

from pathlib import Path

import pytest
import torch

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
