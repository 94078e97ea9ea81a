"""Memory does not grow with prompts and images."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from chunk_grpo.artifacts.embeddings import Embeddings
from tests.conftest import ROOT, Workspace


def peak(count: int, folder: Path) -> int:
    """Peak KiB of a process that writes and reads this many prompts and images of FLUX.1-dev's size."""
    folder.mkdir()
    command = [sys.executable, "-m", "tests.stages.data_path", str(count), str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.slow
def test_three_times_as_many_prompts_take_as_much_memory(tmp_path: Path) -> None:
    """48 prompts more are 202 MB of embeddings and 72 MB of images; 24 fill each shard and row group."""
    few = peak(24, tmp_path / "few")
    assert peak(72, tmp_path / "many") - few < 50 * 1024


@pytest.mark.parametrize("stage", ["profile_l1", "train", "generate_base", "generate"])
def test_a_stage_reads_the_prompts_of_a_batch(
    stage: str, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def edit(raw: dict[str, Any]) -> None:
        raw["profile"]["batch_size"] = raw["train"]["micro_batch_size"] = raw["generate"]["batch_size"] = 3

    sizes: list[int] = []
    read = Embeddings.read

    def counted(self: Embeddings, rows: Sequence[int]) -> Any:
        sizes.append(len(rows))
        assert len(set(rows)) == len(rows)
        return read(self, rows)

    monkeypatch.setattr(Embeddings, "read", counted)
    workspace.edit(edit)
    assert workspace.run(stage) == 0
    assert len(sizes) > 1
    assert 1 <= max(sizes) <= 3
