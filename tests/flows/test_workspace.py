"""flows/_workspace.py: a run's clone is one commit, shares the cache, and leaves the checkout alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from flows._dvc import run_stage
from flows._workspace import clone_workspace

Shell = Callable[..., str]


def test_clone_is_the_commit_and_says_what_is_missing(pipeline: Path, tmp_path: Path, shell: Shell) -> None:
    run_stage("prepare", pipeline, lambda _: None)  # writes dvc.lock: a result, not a change
    (pipeline / "params.yaml").write_text("text: edited\n")
    (pipeline / "new.txt").write_text("new")
    workspace = clone_workspace(pipeline, tmp_path / "runs/one")
    assert workspace.commit == shell(pipeline, "git", "rev-parse", "HEAD").strip()
    assert shell(workspace.path, "git", "rev-parse", "HEAD").strip() == workspace.commit
    assert "text: hello" in (workspace.path / "params.yaml").read_text()
    assert not (workspace.path / "new.txt").exists()
    assert sorted(line[3:] for line in workspace.uncommitted) == ["new.txt", "params.yaml"]


def test_clone_takes_an_older_commit(pipeline: Path, tmp_path: Path, shell: Shell) -> None:
    first = shell(pipeline, "git", "rev-parse", "HEAD").strip()
    shell(pipeline, "git", "commit", "--quiet", "--allow-empty", "--message", "second")
    assert clone_workspace(pipeline, tmp_path / "old", "HEAD~1").commit == first
    assert clone_workspace(pipeline, tmp_path / "head").commit != first


def test_clone_shares_the_cache_and_leaves_the_checkout_alone(pipeline: Path, tmp_path: Path) -> None:
    assert run_stage("prepare", pipeline, lambda _: None).outcome == "ran"
    before = {p: p.stat().st_mtime_ns for p in pipeline.rglob("*") if p.is_file() and ".dvc" not in p.parts}
    workspace = clone_workspace(pipeline, tmp_path / "runs/one").path
    assert run_stage("prepare", workspace, lambda _: None).outcome == "restored"
    assert run_stage("train@a", workspace, lambda _: None).outcome == "ran"
    after = {p: p.stat().st_mtime_ns for p in pipeline.rglob("*") if p.is_file() and ".dvc" not in p.parts}
    assert {p: t for p, t in after.items() if ".git" not in p.parts} == {
        p: t for p, t in before.items() if ".git" not in p.parts
    }
    assert run_stage("train@a", pipeline, lambda _: None).outcome == "restored"


def test_clone_keeps_local_settings_of_dvc(pipeline: Path, tmp_path: Path, shell: Shell) -> None:
    shell(pipeline, "dvc", "remote", "add", "--local", "-d", "near", "../store")
    workspace = clone_workspace(pipeline, tmp_path / "deep/er/one").path
    listed = shell(workspace, "dvc", "config", "--list")
    assert "core.remote=near" in listed
    assert run_stage("prepare", workspace, lambda _: None).outcome == "ran"
    shell(workspace, "dvc", "push", "--run-cache")
    assert (tmp_path / "store/files").is_dir() or (tmp_path / "checkout/../store/files").is_dir()


def test_errors_name_the_cause(pipeline: Path, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no-such-tag"):
        clone_workspace(pipeline, tmp_path / "one", "no-such-tag")
    with pytest.raises(RuntimeError, match="not a git repository"):
        clone_workspace(tmp_path, tmp_path / "one")
    with pytest.raises(FileExistsError, match="clone of its own"):
        clone_workspace(pipeline, tmp_path)
