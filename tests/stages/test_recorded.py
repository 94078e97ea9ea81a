"""What a stage leaves between its end and the moment when DVC has recorded its outputs."""

import hashlib
import shutil
from pathlib import Path

import pytest

from chunk_grpo.artifacts.kept import forget_recorded
from chunk_grpo.environment import CHECKPOINTS
from chunk_grpo.training.copies import remove_copies
from tests.conftest import SCORER, VARIANT, Workspace


@pytest.fixture(autouse=True)
def under_dvc(monkeypatch: pytest.MonkeyPatch, workspace: Workspace) -> None:
    """DVC sets this variable for the commands of stages."""
    monkeypatch.setenv("DVC_ROOT", str(workspace.root))


def record(workspace: Workspace, path: Path) -> None:
    """Write a dvc.lock with an output, as DVC does when it has hashed it."""
    found = hashlib.md5(path.read_bytes()).hexdigest()
    (workspace.root / "dvc.lock").write_text(f"    - path: {path.name}\n      hash: md5\n      md5: {found}\n")


@pytest.mark.parametrize("has_links", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["links", "copies"])
def test_a_training_that_dvc_has_not_recorded_is_not_trained_again(
    has_links: bool,
    workspace: Workspace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Copies of its checkpoints stay as long as the results, whatever stage forgets; if forced, it is trained again."""

    def no_link(source: str, target: str) -> None:
        raise OSError("no hard links here")

    if not has_links:
        monkeypatch.setattr("os.link", no_link)
    copies = tmp_path / "copies"
    monkeypatch.setenv(CHECKPOINTS, str(copies))
    folders = (f"train/{VARIANT}/", f"curves/{VARIANT}/", f"timings/{VARIANT}/")
    assert workspace.run("train") == 0
    whole = workspace.files(*folders)
    (kept,) = (workspace.root / ".ckpt").iterdir()
    assert [path.name for path in kept.iterdir()] == ["results"]  # without checkpoints
    for folder in folders:  # as DVC does before it runs a stage again
        shutil.rmtree(workspace.artifacts / folder)
    capfd.readouterr()
    assert workspace.run("train") == 0
    assert "its results are taken over" in capfd.readouterr().err
    assert workspace.files(*folders) == whole  # the wall-clock metrics too
    (timings,) = (workspace.artifacts / "timings" / VARIANT).iterdir()
    forget_recorded(workspace.root, remove_copies)
    assert kept.exists()
    record(workspace, timings)
    forget_recorded(workspace.root)
    assert kept.exists() and any(path.is_file() for path in (copies / kept.name).rglob("*"))
    assert workspace.run("train") == 0  # `dvc repro --force`: dvc.lock has the first one, which is forgotten
    assert timings.read_bytes() != whole[timings.relative_to(workspace.artifacts).as_posix()]
    record(workspace, timings)
    shutil.copytree(kept, tmp_path / "kept")
    forget_recorded(workspace.root, remove_copies)
    assert not kept.exists() and not any(path.is_file() for path in copies.rglob("*"))
    shutil.copytree(tmp_path / "kept", kept)
    monkeypatch.delenv(CHECKPOINTS)
    forget_recorded(workspace.root)
    assert not kept.exists()


def test_scores_that_dvc_has_not_recorded_are_not_asked_for_again(
    finished: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = Workspace(shutil.copytree(finished.root, tmp_path / "copy"))
    assert workspace.run("score") == 0
    (table,) = (workspace.artifacts / "scores" / VARIANT).rglob(f"*{SCORER}*.parquet")
    whole = table.read_bytes()
    (kept,) = (workspace.root / ".ckpt").iterdir()
    table.unlink()

    def asked(*_: object) -> None:
        raise AssertionError("scored again")

    monkeypatch.setattr("chunk_grpo.library.scoring.rows_of_batch", asked)
    assert workspace.run("score") == 0
    assert table.read_bytes() == whole
    record(workspace, table)
    forget_recorded(workspace.root)
    assert not kept.exists()
