"""`make track`: a finished run that a clone gets by `dvc pull`."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from chunk_grpo.__main__ import call
from tests.small_pipeline import Shell


@pytest.fixture
def finished(finished_pipeline: Path, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The finished pipeline with a remote."""
    root = finished_pipeline
    for name, value in {"GIT_AUTHOR_NAME": "t", "GIT_AUTHOR_EMAIL": "t@localhost"}.items():
        monkeypatch.setenv(name, value)
        monkeypatch.setenv(name.replace("AUTHOR", "COMMITTER"), value)
    dvc(shell, root, "remote", "add", "--local", "-d", "store", str(tmp_path / "remote"))
    return root


def dvc(shell: Shell, folder: Path, *arguments: str) -> str:
    return shell(folder, sys.executable, "-m", "dvc", *arguments)


@pytest.mark.slow
def test_a_clone_pulls_the_results(finished: Path, shell: Shell, tmp_path: Path) -> None:
    params = finished / "params.yaml"
    params.write_text(params.read_text().replace("title: ", "title: Another "))
    dvc(shell, finished, "repro")
    (finished / "staged.txt").write_text("")
    assert call("track", ["--checkout", str(finished)]) == 2  # another edit
    (finished / "staged.txt").unlink()
    assert call("track", ["--checkout", str(finished), "--message", "a run"]) == 0
    assert shell(finished, "git", "log", "-1", "--format=%s").strip() == "a run"
    assert shell(finished, "git", "status", "--short") == ""
    clone = tmp_path / "clone"
    shell(tmp_path, "git", "clone", "--quiet", str(finished), str(clone))
    dvc(shell, clone, "remote", "add", "--local", "-d", "store", str(finished.parent / "remote"))
    dvc(shell, clone, "pull", "dvc.yaml")
    report = Path("artifacts", "report", "report.md")
    assert (clone / report).read_bytes() == (finished / report).read_bytes()
    assert "Another" in (clone / "prepared.txt").read_text()
    assert dvc(shell, clone, "status", "--json").strip() == "{}"
    assert call("track", ["--checkout", str(finished)]) == 0  # again: nothing is new
    assert shell(finished, "git", "log", "-1", "--format=%s").strip() == "a run"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / ".dvc" / "config.local").unlink(), "has no DVC remote"),
        (lambda folder: (folder / "dvc.lock").unlink(), "not finished or not of these files: all stages"),
        (
            lambda folder: (folder / "params.yaml").write_text(
                (folder / "params.yaml").read_text().replace("title: ", "title: Another ")
            ),
            "not finished or not of these files: prepare",
        ),
        (
            lambda folder: (folder / "stages" / "work.py").write_text("# nothing\n"),
            r"no uncommitted edits besides params.yaml, .* got M stages/work.py",
        ),
    ],
)
def test_rejects_run_that_cannot_be_tracked(
    spoil: Callable[[Path], None], message: str, finished: Path, shell: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    before = shell(finished, "git", "rev-parse", "HEAD")
    spoil(finished)
    assert call("track", ["--checkout", str(finished)]) == 2
    assert re.search(message, capsys.readouterr().err)
    assert shell(finished, "git", "rev-parse", "HEAD") == before
