"""flows/_dvc.py against a real DVC repository."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import yaml
from dvc.exceptions import DvcException

from flows import _dvc, _process
from flows._dvc import (
    OutcomeUnclearError,
    StageFailed,
    StageOutcome,
    compose_preset,
    push_run_cache,
    run_stage,
    stage_order,
)

Shell = Callable[..., str]


def outcome(workspace: Path, stage: str, **options: bool) -> str:
    return run_stage(stage, workspace, lambda _: None, **options).outcome


def set_variant(workspace: Path, name: str, **values: float) -> None:
    params = yaml.safe_load((workspace / "params.yaml").read_text())
    params["variants"][name].update(values)
    (workspace / "params.yaml").write_text(yaml.safe_dump(params))


def commit_and_remote(pipeline: Path, remote: Path, shell: Shell) -> None:
    shell(pipeline, sys.executable, "-m", "dvc", "remote", "add", "-d", "store", str(remote))
    shell(pipeline, "git", "commit", "--quiet", "--all", "--message", "remote")


def test_order_needs_and_pools_come_from_dvc_yaml(pipeline: Path) -> None:
    stages = stage_order(pipeline)
    assert [stage.name for stage in stages] == ["prepare", "train@a", "train@b", "report"]
    assert [stage.work_pool for stage in stages] == [None, "gpu", "gpu", None]
    assert [stage.needs for stage in stages] == [(), ("prepare",), ("prepare",), ("train@a", "train@b")]


@pytest.mark.parametrize(
    ("until", "expected"),
    [
        ("prepare", ["prepare"]),
        ("train@b", ["prepare", "train@b"]),
        ("train", ["prepare", "train@a", "train@b"]),
    ],
)
def test_order_until_a_stage_has_only_what_it_needs(pipeline: Path, until: str, expected: list[str]) -> None:
    assert [stage.name for stage in stage_order(pipeline, [until])] == expected


def test_order_until_an_unknown_stage_is_an_error(pipeline: Path) -> None:
    with pytest.raises(DvcException, match="trian"):
        stage_order(pipeline, ["trian"])


def test_ran_then_unchanged_then_restored_then_forced(pipeline: Path) -> None:
    log: list[str] = []
    first = run_stage("prepare", pipeline, log.append)
    assert first.outcome == "ran"
    assert first.seconds > 0
    assert "Running stage 'prepare':" in log
    assert outcome(pipeline, "prepare") == "unchanged"
    (pipeline / "prepared.txt").unlink()
    (pipeline / "dvc.lock").unlink()
    assert outcome(pipeline, "prepare") == "restored"
    assert (pipeline / "prepared.txt").read_text() == "hello"
    assert outcome(pipeline, "prepare", force=True) == "ran"


def test_pushed_run_cache_restores_on_a_machine_with_an_empty_cache(
    pipeline: Path, tmp_path: Path, shell: Shell
) -> None:
    commit_and_remote(pipeline, tmp_path / "remote", shell)
    assert outcome(pipeline, "prepare") == "ran"
    push_run_cache(pipeline, lambda _: None)
    other = tmp_path / "other"
    shell(tmp_path, "git", "clone", "--quiet", str(pipeline), str(other))
    assert outcome(other, "prepare") == "restored"
    shutil.copy(pipeline / "dvc.lock", other)
    (other / "prepared.txt").unlink()
    shutil.rmtree(other / ".dvc/cache")
    assert outcome(other, "prepare") == "pulled"
    assert (other / "prepared.txt").read_text() == "hello"


def test_failure_has_exit_code_and_last_lines(pipeline: Path) -> None:
    run_stage("prepare", pipeline, lambda _: None)
    set_variant(pipeline, "a", exit_code=3)
    with pytest.raises(StageFailed, match=r"stage train@a failed with exit code 3 \(bad input\)") as error:
        run_stage("train@a", pipeline, lambda _: None)
    assert error.value.exit_code == 3
    assert any("training a" in line for line in error.value.last_lines)
    set_variant(pipeline, "b", exit_code=1)
    with pytest.raises(StageFailed, match=r"(?s)exit code 1\n.*no training for b"):
        run_stage("train@b", pipeline, lambda _: None)


@pytest.mark.parametrize("waits", [False, True])
def test_a_killed_stage_is_reported_as_killed(
    pipeline: Path, waits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the shell of DVC waits for the command, rather than become it, and exits with 137 for it."""
    if waits:
        shell = tmp_path / "waiting-shell"
        shell.write_text('#!/bin/sh\n/bin/sh "$@"\nexit $?\n')
        shell.chmod(0o755)
        monkeypatch.setenv("SHELL", str(shell))
    run_stage("prepare", pipeline, lambda _: None)
    set_variant(pipeline, "a", seconds=60)

    def kill() -> None:
        psutil.Process(wait_for_pid(pipeline / "a.pid")).kill()

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(StageFailed, match="stage train@a was ended by SIGKILL") as error:
        run_stage("train@a", pipeline, lambda _: None)
    assert error.value.exit_code == -9
    killer.join()


def test_a_stage_that_does_not_say_that_it_ran_is_refused(pipeline: Path) -> None:
    work = pipeline / "stages/work.py"
    work.write_text(work.read_text().replace("Path(marker).touch()", "pass"))
    with pytest.raises(OutcomeUnclearError, match="log says ran, but the stage did not touch"):
        run_stage("prepare", pipeline, lambda _: None)


def test_a_stage_can_not_pretend_to_be_cached(pipeline: Path) -> None:
    work = pipeline / "stages/work.py"
    work.write_text(work.read_text() + "print(\"Stage 'prepare' didn't change, skipping\")\n")
    with pytest.raises(OutcomeUnclearError, match="log says unchanged, but the stage touched"):
        run_stage("prepare", pipeline, lambda _: None)


@pytest.mark.parametrize("deaf", [False, True])
def test_cancelling_ends_the_whole_process_group(
    pipeline: Path, deaf: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception in here, as Prefect raises on SIGTERM, leaves no process, not even one deaf to SIGTERM."""
    monkeypatch.setattr(_process, "STOP_SECONDS", 1.0)
    run_stage("prepare", pipeline, lambda _: None)
    set_variant(pipeline, "a", seconds=60)
    if deaf:
        work = pipeline / "stages/work.py"
        work.write_text("import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + work.read_text())

    def cancel_when_it_trains(line: str) -> None:
        if line.startswith("training a"):
            wait_for_pid(pipeline / "a.pid")
            raise KeyboardInterrupt

    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_stage("train@a", pipeline, cancel_when_it_trains)
    assert time.monotonic() - start < 30
    pid = wait_for_pid(pipeline / "a.pid")
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def wait_for_pid(file: Path) -> int:
    deadline = time.monotonic() + 30
    while not (file.exists() and file.read_text()):
        assert time.monotonic() < deadline, f"{file} was not written"
        time.sleep(0.05)
    return int(file.read_text())


def test_lines_arrive_while_the_process_runs_and_progress_bars_are_thinned(tmp_path: Path) -> None:
    code = (
        "import sys, time\n"
        "for i in range(50): print(f'{i} of 50', end='\\r', flush=True)\n"
        "print('done', flush=True); time.sleep(1); sys.exit(7)\n"
    )
    arrived: list[tuple[str, float]] = []
    start = time.monotonic()
    status = _process.run_logged(
        [sys.executable, "-c", code], tmp_path, {}, lambda line: arrived.append((line, time.monotonic()))
    )
    assert status == 7
    assert [line for line, _ in arrived] == ["0 of 50", "done"]
    assert time.monotonic() - arrived[-1][1] > 0.8
    assert start < arrived[0][1]


def test_preset_is_composed_into_params(pipeline: Path) -> None:
    compose_preset(pipeline, "smoke", ["variants.a.seconds=2", "text=bye"])
    params = yaml.safe_load((pipeline / "params.yaml").read_text())
    assert params["preset"] == "smoke"
    assert params["text"] == "bye"
    assert params["variants"]["a"] == {"seconds": 2, "exit_code": 0}


@pytest.mark.parametrize(
    ("preset", "overrides", "message"),
    [("tinny", [], "tinny"), ("tiny", ["txt=bye"], "txt"), ("tiny", ["text"], "text")],
)
def test_unknown_preset_or_override_is_an_error(
    pipeline: Path, preset: str, overrides: list[str], message: str
) -> None:
    before = (pipeline / "params.yaml").read_text()
    with pytest.raises(ValueError, match=message):
        compose_preset(pipeline, preset, overrides)
    assert (pipeline / "params.yaml").read_text() == before


@pytest.mark.parametrize("outcome", ["ran", "restored", "pulled", "unchanged"])
def test_outcome_survives_as_text(outcome: _dvc.Outcome) -> None:
    assert StageOutcome.parse("s", str(StageOutcome("s", outcome, 1.26))) == StageOutcome("s", outcome, 1.3)


def test_text_of_something_else_is_no_outcome() -> None:
    with pytest.raises(ValueError, match="expected an outcome"):
        StageOutcome.parse("s", "All states completed.")
