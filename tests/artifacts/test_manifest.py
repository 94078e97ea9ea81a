"""Run manifests."""

import json
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from torch._dynamo.utils import counters

from chunk_grpo.artifacts import measured_run, read_manifest
from chunk_grpo.errors import DataError


def test_a_run_is_measured(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "train@chunk.json"
    with measured_run("train@chunk", path) as notes:
        notes["updates"] = 60
        time.sleep(0.05)
        assert not path.exists()
    manifest = read_manifest(path)
    assert manifest.stage == "train@chunk"
    assert 0.05 <= manifest.seconds < 5
    assert 10 < manifest.peak_memory_mib < 1e6
    assert datetime.now(UTC) - datetime.fromisoformat(manifest.started_at) < timedelta(minutes=1)
    assert manifest.notes["updates"] == 60
    assert manifest.packages["torch"].startswith("2.")
    assert manifest.cpu
    assert manifest.commit is None or len(manifest.commit) == 40


@pytest.mark.parametrize(("used", "notes"), [(False, {}), (True, {"peak_gpu_mib": 1536.5})])
def test_a_process_that_used_a_gpu_notes_the_peak_of_its_tensors(
    used: bool, notes: dict[str, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: used)
    monkeypatch.setattr("torch.cuda.max_memory_allocated", lambda: 1536 * 2**20 + 2**19)
    with measured_run("train", tmp_path / "run.json"):
        pass
    assert read_manifest(tmp_path / "run.json").notes == notes


def test_a_process_that_compiled_notes_its_graphs(tmp_path: Path) -> None:
    with measured_run("train", tmp_path / "run.json"):
        counters["stats"]["unique_graphs"] += 3  # as torch counts them
    assert read_manifest(tmp_path / "run.json").notes["compiled_graphs"] == 3
    with measured_run("train", tmp_path / "run.json"):
        pass
    assert "compiled_graphs" not in read_manifest(tmp_path / "run.json").notes


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells the peak of one program on Linux only")
def test_peak_memory_excludes_parent_process(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    stage = f"from chunk_grpo.artifacts import measured_run\nwith measured_run('train', {str(path)!r}):\n    pass\n"
    starter = (
        "import subprocess, sys\nx = bytes([1]) * 2**30\n"
        f"subprocess.run([sys.executable, '-c', {stage!r}], check=True)\n"
    )
    subprocess.run([sys.executable, "-c", starter], check=True)
    assert 10 < read_manifest(path).peak_memory_mib < 800


def test_the_commit_is_the_checkouts_and_null_outside_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with measured_run("report", "run.json"):
        pass
    assert read_manifest("run.json").commit is None


def test_a_failed_run_leaves_no_manifest(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), measured_run("train", tmp_path / "train.json"):
        _ = 1 / 0
    assert list(tmp_path.iterdir()) == []


def test_a_manifest_of_another_version_or_kind(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"manifest_version": 0}))
    with pytest.raises(DataError, match="must be a run manifest of version 1, got version 0"):
        read_manifest(path)
    path.write_text(json.dumps({"manifest_version": 1, "stage": "x"}))
    with pytest.raises(DataError, match="no run manifest"):
        read_manifest(path)
