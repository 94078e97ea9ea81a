"""`make gc`: what it says, what it refuses, and that results can be used or made again afterwards."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from chunk_grpo.__main__ import call
from chunk_grpo.git import resolved
from chunk_grpo.orchestration.cache import cache_in_use, cache_of
from chunk_grpo.orchestration.clones import locked, make_clone
from chunk_grpo.orchestration.commands import Commands
from chunk_grpo.orchestration.workspace import RunSpec, TrainedModels, Workspace, make_workspace
from tests.forked_dvc import forked_dvc
from tests.small_pipeline import ENVIRONMENT, Shell, quiet
from tests.waiting import wait_for

DAY = 86400


@pytest.fixture
def checkout(finished_pipeline: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The finished pipeline."""
    root = finished_pipeline
    monkeypatch.setenv("PREFECT_HOME", str(root / ".prefect"))
    monkeypatch.setattr("chunk_grpo.orchestration.cache.dvc", forked_dvc)
    return root


def gc(checkout: Path, *options: str) -> int:
    return call("gc", [*options, "--checkout", str(checkout)])


@pytest.mark.parametrize("command", ["gc", "track"])
def test_a_folder_that_is_no_clone(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(command, ["--checkout", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(f"error: {tmp_path}: must be a clone of the repository, for git and DVC")


def test_unreferenced_results_are_removed_and_reproducible(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted((checkout / ".dvc/cache").rglob("*"))
    assert gc(checkout) == 0
    assert ": 0 files, 0 bytes, would be removed\n`make gc DELETE=1` removes this.\n" in capsys.readouterr().out
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


def test_experiment_of_a_run_keeps_its_results(
    checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without its clone, and although two runs saved theirs at once; its models can be evaluated again."""
    spec = RunSpec(commit=resolved(checkout, "HEAD"), preset="tiny", overrides=("generate.seed=7",))
    lock, runs = (checkout / "dvc.lock").read_text(), [f"run-{number}" for number in range(2)]
    with ExitStack() as stack:
        made = [
            stack.enter_context(make_workspace(checkout, tmp_path, name, spec, Commands(), quiet, experiment=name))
            for name in runs
        ]
        for each in made:
            each.save()  # nothing to save: no dvc.lock yet
            (each.root / "dvc.lock").write_text(lock)
        with ThreadPoolExecutor() as pool:
            list(pool.map(Workspace.save, made))
    shutil.rmtree(tmp_path / "runs")
    (checkout / "dvc.lock").unlink()
    assert sorted(re.findall(r"\[(.*)]", forked_dvc(checkout, "exp", "list"))) == runs
    assert gc(checkout, "--delete") == 0
    assert ": 0 files, " in capsys.readouterr().out
    models = TrainedModels(commit="c", params=(checkout / "params.yaml").read_text(), lock=lock)
    again = spec.model_copy(update={"models": models})  # as `chunk-grpo/reevaluate` does
    with make_workspace(checkout, tmp_path, "again", again, Commands(), quiet) as workspace:
        assert (workspace.root / "models/a.txt").exists()
    forked_dvc(checkout, "exp", "apply", "run-1")
    assert (checkout / "dvc.lock").read_text() == lock
    assert "seed: 7" in (checkout / "params.yaml").read_text()
    (checkout / "dvc.lock").unlink()
    forked_dvc(checkout, "exp", "remove", *runs)
    assert gc(checkout) == 0
    assert ": 7 files, " in capsys.readouterr().out


def test_nothing_is_removed_while_a_flow_run_uses_the_cache(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (checkout / "dvc.lock").unlink()
    cache = cache_of(checkout)
    with cache_in_use(cache), cache_in_use(cache):
        assert gc(checkout, "--delete") == 75
        assert "a flow run uses it; run `make gc` again" in capsys.readouterr().err
        assert gc(checkout) == 0
        assert "A run is active: nothing can be removed now." in capsys.readouterr().out
    began = threading.Event()

    def run() -> None:
        with cache_in_use(cache):
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
    forked_dvc(other, "cache", "dir", "--local", str(cache))
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
    assert gc(checkout, "--delete") == 2
    assert re.search(r"dvc\.lock'(.|\n)*structure is corrupted", capsys.readouterr().err)


def test_unfinished_trainings_are_listed_by_name_and_old_ones_go(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state, clone = checkout / ".prefect/state/.ckpt", checkout / ".prefect/runs/one"
    old, new, scores = (state / name for name in ("aaaa", "bbbb", "cccc"))
    for folder, file in ((old, "iteration-000003.pt"), (new, "iteration-000001.pt"), (scores, "batch-000000.parquet")):
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
