"""`make gc`: what it says, what it refuses, and that results can be used or made again afterwards."""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from chunk_grpo.git import resolved
from chunk_grpo.orchestration.cache_use import cache_in_use, cache_of, remember_published
from chunk_grpo.orchestration.clones import locked, make_clone
from chunk_grpo.orchestration.commands import Commands
from chunk_grpo.orchestration.pipeline import Pipeline
from chunk_grpo.orchestration.workspace import share_cache
from infra.gc import main
from tests.forked_dvc import forked_dvc
from tests.small_pipeline import ENVIRONMENT, Shell
from tests.waiting import wait_for

DAY = 86400


def quiet(_: str) -> None:
    """Log nothing."""


@pytest.fixture(scope="module")
def finished(
    make_pipeline: Callable[[Path], Path], shell: Shell, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The small pipeline, finished. Read only."""
    root = make_pipeline(tmp_path_factory.mktemp("finished") / "checkout")
    forked_dvc(root, "repro", "--quiet")
    return root


@pytest.fixture
def checkout(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the finished pipeline to change."""
    root = tmp_path / "checkout"
    shutil.copytree(finished, root, symlinks=True)
    monkeypatch.delenv("CHUNK_GRPO_PUBLISH", raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(root / ".prefect"))
    monkeypatch.setattr("chunk_grpo.orchestration.unused.dvc", forked_dvc)
    return root


def gc(checkout: Path, *options: str) -> int:
    return main([*options, "--checkout", str(checkout)])


def publish_lock(checkout: Path, root: Path) -> None:
    """What is left of a run in its published folder, and nowhere else, once its clone is gone."""
    (root / "tiny").mkdir(parents=True)
    shutil.move(checkout / "dvc.lock", root / "tiny" / "dvc.lock")


def test_unreferenced_results_are_removed_and_reproducible(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted((checkout / ".dvc/cache").rglob("*"))
    assert gc(checkout) == 0
    assert (
        ": 0 files, 0 bytes, would be removed\n`make gc DELETE=1` removes this.\n" in capsys.readouterr().out
    )
    (checkout / "dvc.lock").unlink()
    assert gc(checkout) == 0
    said = capsys.readouterr().out
    assert ": 7 files, " in said and "bytes  artifacts/report\n" in said and "bytes  models/a.txt\n" in said
    assert [path for path in before if not path.exists()] == []
    assert gc(checkout, "--delete") == 0
    assert ": 7 files, " in capsys.readouterr().out
    assert [path for path in (checkout / ".dvc/cache/files").rglob("*") if path.is_file()] == []
    assert list((checkout / ".dvc/cache/runs").glob("*/*/*")) == []
    shutil.rmtree(checkout / "artifacts")
    forked_dvc(checkout, "repro", "--quiet")
    assert gc(checkout) == 0
    assert ": 0 files, " in capsys.readouterr().out


def test_results_of_a_commit_stay_until_no_branch_has_it(
    checkout: Path, shell: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    shell(checkout, "git", "switch", "--quiet", "--create", "tracked")
    shell(checkout, "git", "add", "dvc.lock")  # as `make track`
    shell(checkout, "git", "commit", "--quiet", "--message", "tracked")
    shell(checkout, "git", "switch", "--quiet", "-")
    assert not (checkout / "dvc.lock").exists()
    assert gc(checkout) == 0
    assert ": 0 files, " in capsys.readouterr().out
    shell(checkout, "git", "branch", "--quiet", "-D", "tracked")
    assert gc(checkout) == 0
    assert ": 7 files, " in capsys.readouterr().out


@pytest.mark.parametrize("where", ["home", "environment", "remembered", "bucket"])
def test_models_of_a_published_run_can_be_evaluated_again(
    where: str,
    checkout: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lock, root = (checkout / "dvc.lock").read_text(), tmp_path / "published"
    if where == "home":
        root = checkout / ".prefect" / "published"
    elif where == "environment":
        monkeypatch.setenv("CHUNK_GRPO_PUBLISH", str(root))
    elif where == "remembered":
        remember_published(cache_of(checkout), str(root))
    if where == "bucket":
        import s3fs

        url = f"{request.getfixturevalue('bucket')}/published"
        monkeypatch.setenv("CHUNK_GRPO_PUBLISH", url)
        s3fs.S3FileSystem(skip_instance_cache=True).pipe_file(f"{url}/runs/r/tiny/dvc.lock", lock.encode())
        (checkout / "dvc.lock").unlink()
    else:
        publish_lock(checkout, root)
    assert gc(checkout, "--delete") == 0
    clone = tmp_path / "clone"
    make_clone(checkout, resolved(checkout, "HEAD"), clone)
    share_cache(checkout, clone)
    Pipeline(clone, Commands()).freeze_trainings(lock, quiet)  # as `chunk-grpo/reevaluate` does
    assert (clone / "models/a.txt").exists()


def test_gc_stops_if_published_folder_is_missing(
    checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A disk that is not mounted now. A home that is gone, as that of `make smoke`, is none."""
    cache = cache_of(checkout)
    with cache_in_use(cache, tmp_path / "gone"):
        remember_published(cache, str(tmp_path / "gone" / "published"))
    assert gc(checkout) == 0
    remember_published(cache, str(tmp_path / "unmounted"))
    assert gc(checkout) == 2
    assert f"{tmp_path}/unmounted: must be there" in capsys.readouterr().err


def test_nothing_is_removed_while_a_flow_run_uses_the_cache(
    checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkout / "dvc.lock").unlink()
    cache = cache_of(checkout)
    with cache_in_use(cache, tmp_path / "home"), cache_in_use(cache, tmp_path / "home"):
        assert gc(checkout, "--delete") == 75
        assert "a flow run uses it; run `make gc` again" in capsys.readouterr().err
        assert gc(checkout) == 0
        assert "A run is active: nothing can be removed now." in capsys.readouterr().out
    rwlock = checkout / ".prefect/runs/by-hand/.dvc/tmp/rwlock"  # somebody runs a stage in a clone
    rwlock.parent.mkdir(parents=True)
    user = {"pid": os.getpid(), "cmd": "dvc repro"}
    rwlock.write_text(json.dumps({"write": {"model": user}, "read": {"data": [user]}}))
    assert gc(checkout, "--delete") == 75
    assert gc(checkout) == 0
    rwlock.unlink()
    began = threading.Event()

    def run() -> None:
        with cache_in_use(cache, tmp_path / "home"):
            began.set()

    with locked(cache / "in-use"):  # as `make gc` holds it
        thread = threading.Thread(target=run)
        thread.start()
        assert not began.wait(0.3)
    thread.join()
    assert began.is_set()
    assert gc(checkout, "--delete") == 0


def test_gc_stops_while_dvc_runs_a_stage(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    params = checkout / "params.yaml"
    params.write_text(params.read_text().replace("objective: chunk", "eta: 5\n    objective: chunk", 1))
    (checkout / "a.pid").unlink()
    with subprocess.Popen([sys.executable, "-m", "dvc", "repro"], cwd=checkout, env=ENVIRONMENT) as running:
        wait_for((checkout / "a.pid").exists, 120, "the training")
        assert gc(checkout) == 75
        assert f"process {running.pid} runs `" in capsys.readouterr().err
        running.kill()
        os.kill(int((checkout / "a.pid").read_text()), 9)
    assert gc(checkout) == 0


def test_gc_refuses_external_cache_with_other_checkouts(
    checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache, other = tmp_path / "cache", tmp_path / "other"
    shutil.move(checkout / ".dvc/cache", cache)
    forked_dvc(checkout, "cache", "dir", "--local", str(cache))
    make_clone(checkout, resolved(checkout, "HEAD"), other)
    shutil.move(checkout / "dvc.lock", other / "dvc.lock")
    files = sorted(cache.rglob("*"))
    assert gc(checkout) == 0
    assert gc(checkout, "--delete") == 2
    assert "other checkouts may use it" in capsys.readouterr().err
    assert gc(checkout, "--delete", "--with", str(tmp_path)) == 2
    assert gc(checkout, "--delete", "--with", str(other)) == 0
    assert sorted(path for path in cache.rglob("*") if path.name != "in-use") == files
    assert gc(checkout, "--delete", "--alone") == 0
    assert not [path for path in (cache / "files").rglob("*") if path.is_file()]


def test_a_lock_file_that_cannot_be_read_stops_it(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (checkout / "dvc.lock").write_text("<<<<<<< ours\nschema: '2.0'\n")
    assert gc(checkout, "--delete") == 3
    assert "dvc.lock: must be YAML" in capsys.readouterr().err


def test_unfinished_trainings_are_listed_by_name_and_old_ones_go(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state, clone = checkout / ".prefect/state/.ckpt", checkout / ".prefect/runs/one"
    old, new, scores = (state / name for name in ("aaaa", "bbbb", "cccc"))
    for folder, file in (
        (old, "iteration-000003.pt"),
        (new, "iteration-000001.pt"),
        (scores, "batch-000000.parquet"),
    ):
        (folder / "best").mkdir(parents=True)
        (folder / file).write_bytes(b"x" * 1000)
    os.utime(old / "iteration-000003.pt", times=(1e9, 1e9))
    (state / "locks").mkdir()
    journal = clone / "logs/paper/seed-7/progress.jsonl"
    journal.parent.mkdir(parents=True)
    journal.write_text(json.dumps({"identity": "aaaa"}) + "\n")
    shutil.copy(checkout / "params.yaml", clone)
    assert gc(checkout, "--checkpoints", "30") == 0
    lines = capsys.readouterr().out.splitlines()
    (first,) = (line for line in lines if str(old) in line)
    assert first.startswith("      1.0 kB  2001-09-0") and first.endswith(", would be removed")
    assert "tiny paper seed-7" in first
    (second,) = (line for line in lines if str(new) in line)
    assert "unknown training" in second and second.endswith(str(new))
    assert any("  scores  " in line and str(scores) in line for line in lines)
    assert old.exists()
    assert gc(checkout, "--delete") == 0
    assert old.exists()
    assert gc(checkout, "--delete", "--checkpoints", "0") == 2
    assert "--checkpoints: must be at least 1 day, got 0" in capsys.readouterr().err
    assert gc(checkout, "--delete", "--checkpoints", "30") == 0
    assert sorted(path.name for path in state.iterdir()) == ["bbbb", "cccc", "locks"]
