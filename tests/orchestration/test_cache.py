"""Remains of a full disk or a kill are removed from DVC's run cache, and nothing else."""

import os
from pathlib import Path

import pytest

from chunk_grpo.errors import ConfigError
from chunk_grpo.orchestration.cache import forget_unfinished
from tests.forked_dvc import forked_dvc

DVC_YAML = "stages:\n  copy:\n    cmd: cp a b\n    deps: [a]\n    outs: [b]\n"


def aged(path: Path, seconds: float = 60.0) -> Path:
    time = path.stat().st_mtime - seconds
    os.utime(path, (time, time))
    return path


def folder(runs: Path, key: str, *entries: str) -> Path:
    made = runs / key[:2] / key
    made.mkdir(parents=True)
    for entry in entries:
        (made / entry).write_text("entry")
    return made


def test_unfinished_entries_and_empty_folders_go_and_finished_ones_stay(tmp_path: Path) -> None:
    empty, half = folder(tmp_path, "aa1"), folder(tmp_path, "aa2", ".x.tmp")
    both, whole = folder(tmp_path, "bb1", ".x.tmp", "cc"), folder(tmp_path, "bb2", "cc")
    forget_unfinished(tmp_path)  # which may be being written
    assert len(list(tmp_path.glob("??/*/*"))) == 4 and empty.is_dir()
    for each in (empty, half, both, whole):
        aged(each)
    forget_unfinished(tmp_path)
    forget_unfinished(tmp_path / "none")
    assert sorted(path.name for path in tmp_path.glob("??/*")) == ["bb1", "bb2"]
    assert [path.name for each in (both, whole) for path in each.iterdir()] == ["cc", "cc"]


@pytest.mark.parametrize("left", ["", pytest.param(".x.tmp", marks=pytest.mark.slow)], ids=["nothing", "half"])
def test_dvc_runs_a_stage_whose_entry_was_not_written(tmp_path: Path, left: str) -> None:
    """And fails before that: when it no longer does, none of this is needed."""

    root = tmp_path / "checkout"
    root.mkdir()
    (root / "dvc.yaml").write_text(DVC_YAML)
    (root / "a").write_text("a")
    forked_dvc(root, "init", "--no-scm")
    forked_dvc(root, "repro")
    runs = root / ".dvc/cache/runs"
    (entry,) = runs.glob("*/*/*")
    entry.unlink()
    if left:
        (entry.parent / left).touch()
    (root / "dvc.lock").unlink()
    (root / "b").unlink()
    if not left:
        with pytest.raises(ConfigError):
            forked_dvc(root, "repro")
    aged(entry.parent)
    forget_unfinished(runs)
    forked_dvc(root, "repro")
    assert (root / "b").read_text() == "a"
