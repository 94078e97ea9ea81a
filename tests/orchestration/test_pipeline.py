"""chunk_grpo/orchestration/pipeline.py against a real DVC repository."""

import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from chunk_grpo.errors import ConfigError
from chunk_grpo.orchestration import pipeline
from chunk_grpo.orchestration.commands import Commands, CommandStoppedError
from chunk_grpo.orchestration.outcomes import RemoteError, StageFailed
from chunk_grpo.orchestration.pipeline import Pipeline, locked_stages
from chunk_grpo.orchestration.presets import composed
from chunk_grpo.orchestration.workspace import write_params
from tests.small_pipeline import Shell, quiet
from tests.waiting import has_ended, wait_for

TITLE = "no title"
STAGES = ["prepare", "train@a", "train@b", "report"]


def of(folder: Path) -> Pipeline:
    return Pipeline(folder, Commands())


def outcome(workspace: Path, stage: str, **options: bool) -> str:
    return of(workspace).run(stage, quiet, **options).outcome


def outcomes(workspace: Path, *targets: str, **options: bool) -> dict[str, str]:
    restored = of(workspace).restore(targets, quiet, **options)
    return {name: found.outcome for name, found in restored.items()}


def set_variant(workspace: Path, name: str, **values: float) -> None:
    params = yaml.safe_load((workspace / "params.yaml").read_text())
    params["variants"][name].update(values)
    (workspace / "params.yaml").write_text(yaml.safe_dump(params))


def commit_and_remote(pipeline: Path, remote: Path | str, shell: Shell) -> None:
    shell(pipeline, sys.executable, "-m", "dvc", "remote", "add", "-d", "store", str(remote))
    shell(pipeline, "git", "commit", "--quiet", "--all", "--message", "remote")


def another_clone(pipeline: Path, shell: Shell) -> Path:
    """Workspace of a machine with its own cache."""
    other = pipeline.parent / "other"
    shell(pipeline.parent, "git", "clone", "--quiet", str(pipeline), str(other))
    return other


def pid_of_training(pipeline: Path) -> int:
    file = pipeline / "a.pid"
    return int(wait_for(lambda: file.exists() and file.read_text(), 30, "a training"))


def test_order_needs_and_meta_come_from_dvc_yaml(pipeline: Path) -> None:
    stages = of(pipeline).stages()
    assert [stage.name for stage in stages] == STAGES
    assert [stage.work_pool for stage in stages] == [None, "gpu", "gpu", None]
    assert [stage.flow for stage in stages][1:3] == ["train", "train"]
    assert [stage.makes_model for stage in stages] == [True, True, True, False]
    assert [stage.needs for stage in stages] == [(), ("prepare",), ("prepare",), ("train@a", "train@b")]


def test_order_until_a_stage_has_only_what_it_needs(pipeline: Path) -> None:
    found = {until: [stage.name for stage in of(pipeline).stages([until])] for until in ("train@b", "train")}
    assert found == {"train@b": ["prepare", "train@b"], "train": ["prepare", "train@a", "train@b"]}


def test_order_until_an_unknown_stage_is_an_error(pipeline: Path) -> None:
    (pipeline / "elsewhere").mkdir()  # with stages that are no part of the pipeline
    (pipeline / "elsewhere/dvc.yaml").write_text("stages: {other: {cmd: 'true'}}\n")
    known = "prepare, report, train, train@a, train@b"
    for until in ("trian", "train@c", ""):
        with pytest.raises(ConfigError, match=f"no stage and no group of stages '{until}'; it has {known}$"):
            of(pipeline).stages([until])


def test_ran_then_unchanged_then_restored_then_forced(pipeline: Path) -> None:
    log: list[str] = []
    first = of(pipeline).run("prepare", log.append)
    assert (first.outcome, first.size) == ("ran", len(TITLE))
    assert first.seconds > 0
    assert "Running stage 'prepare':" in log
    assert outcomes(pipeline, "prepare") == {"prepare": "unchanged"}
    (pipeline / "prepared.txt").unlink()
    (pipeline / "dvc.lock").unlink()
    (restored,) = of(pipeline).restore(["prepare"], quiet).values()
    assert (restored.outcome, restored.size) == ("restored", len(TITLE))
    assert (pipeline / "prepared.txt").read_text() == TITLE
    assert outcome(pipeline, "prepare", force=True) == "ran"


@pytest.fixture
def trainable(finished_pipeline: Path) -> Path:
    """The finished pipeline without the mark of the process that trained `a`."""
    (finished_pipeline / "a.pid").unlink()
    return finished_pipeline


def test_restoring_runs_nothing_and_goes_as_far_as_the_cache(trainable: Path) -> None:
    set_variant(trainable, "a", clip_range=0.5)
    (trainable / "dvc.lock").unlink()
    shutil.rmtree(trainable / "models")
    assert outcomes(trainable, *STAGES) == {"prepare": "restored", "train@b": "restored"}
    assert outcomes(trainable, *STAGES) == {"prepare": "unchanged", "train@b": "unchanged"}
    assert not (trainable / "a.pid").exists()


def taken_over(workspace: Path, earlier: dict[str, Any]) -> dict[str, str]:
    """Outcomes of a new workspace with the stages of another dvc.lock."""
    for folder in ("artifacts", "models"):
        shutil.rmtree(workspace / folder, ignore_errors=True)
    for file in ("prepared.txt", "dvc.lock"):
        (workspace / file).unlink(missing_ok=True)
    restored = of(workspace).restore(None, quiet, earlier=earlier)
    return {name: found.outcome for name, found in restored.items()}


def test_results_of_an_earlier_run_are_checked_out_without_the_run_cache(finished_pipeline: Path) -> None:
    pipeline = finished_pipeline
    lock = (pipeline / "dvc.lock").read_bytes()
    shutil.rmtree(pipeline / ".dvc" / "cache" / "runs")
    earlier = locked_stages(pipeline / "dvc.lock")
    assert taken_over(pipeline, earlier) == dict.fromkeys(STAGES, "restored")
    assert (pipeline / "dvc.lock").read_bytes() == lock
    assert (pipeline / "artifacts/report/report.md").exists()


@pytest.mark.slow
def test_only_what_the_targets_need_is_restored(finished_pipeline: Path) -> None:
    pipeline = finished_pipeline
    earlier = locked_stages(pipeline / "dvc.lock")
    assert taken_over(pipeline, {}) == dict.fromkeys(STAGES, "restored")
    for given in ({}, earlier):
        shutil.rmtree(pipeline / "models")
        (pipeline / "dvc.lock").unlink()
        restored = of(pipeline).restore(["train@a"], quiet, earlier=given)
        assert list(restored) == ["prepare", "train@a"]
        assert [path.name for path in (pipeline / "models").glob("*.txt")] == ["a.txt"]
        assert of(pipeline).restore([], quiet, earlier=given) == {}


@pytest.mark.slow
def test_results_of_an_earlier_run_with_other_settings_do_not_stay(finished_pipeline: Path) -> None:
    """The variant b is to be trained again, so there is neither a model nor a report, nor an entry of either."""
    pipeline = finished_pipeline
    earlier = locked_stages(pipeline / "dvc.lock")
    set_variant(pipeline, "b", clip_range=0.5)
    assert taken_over(pipeline, earlier) == {"prepare": "restored", "train@a": "restored"}
    assert list(locked_stages(pipeline / "dvc.lock")) == ["prepare", "train@a"]
    assert [path.name for path in (pipeline / "models").glob("*.txt")] == ["a.txt"]
    assert not (pipeline / "artifacts/report").exists()
    assert outcome(pipeline, "train@b") == "ran"


@pytest.mark.slow
def test_results_of_an_earlier_run_come_from_the_run_cache_if_inputs_changed_back(finished_pipeline: Path) -> None:
    pipeline = finished_pipeline
    set_variant(pipeline, "b", clip_range=0.5)
    assert outcome(pipeline, "train@b") == "ran"
    earlier = locked_stages(pipeline / "dvc.lock")
    set_variant(pipeline, "b", clip_range=0.25)
    assert outcome(pipeline, "train@b") == "ran"
    expected = (pipeline / "models/b.txt").read_text()
    assert taken_over(pipeline, earlier) == dict.fromkeys(STAGES[:3], "restored")
    assert (pipeline / "models/b.txt").read_text() == expected


@pytest.mark.slow
def test_results_of_an_earlier_run_that_the_cache_lacks_are_missing(finished_pipeline: Path) -> None:
    pipeline = finished_pipeline
    earlier = locked_stages(pipeline / "dvc.lock")
    for output in earlier["train@a"]["outs"]:
        (pipeline / ".dvc/cache/files/md5" / output["md5"][:2] / output["md5"][2:]).unlink()
    assert taken_over(pipeline, earlier) == {"prepare": "restored", "train@b": "restored"}
    assert not (pipeline / "models/a.txt").exists()


@pytest.mark.slow
def test_models_are_kept_and_never_trained_again(finished_pipeline: Path, tmp_path: Path, shell: Shell) -> None:
    """Whatever has changed since: the code, the prompts, even the command."""
    pipeline = finished_pipeline
    commit_and_remote(pipeline, tmp_path / "remote", shell)
    of(pipeline).push(quiet)
    lock = (pipeline / "dvc.lock").read_text()
    other = another_clone(pipeline, shell)
    work = other / "stages/work.py"
    work.write_text(work.read_text() + "# another version\n")
    params = composed(other, "tiny")
    params["report"]["title"], params["variants"]["a"]["eta"] = "later", 10.0
    write_params(other, params)
    of(other).freeze_trainings(lock, quiet)
    assert (other / "models/a.txt").read_text() == (pipeline / "models/a.txt").read_text()
    kept = ["prepare", "train@a", "train@b"]
    assert outcomes(other, *STAGES, pull=True) == dict.fromkeys(kept, "unchanged")
    assert outcome(other, "report") == "ran"
    assert outcomes(other, *STAGES) == dict.fromkeys(STAGES, "unchanged")
    assert (other / "models/a.txt").read_text() == (pipeline / "models/a.txt").read_text()


@pytest.mark.slow
def test_adopts_outputs_of_other_workspace_over_older_cache_entry(
    finished_pipeline: Path, tmp_path: Path, shell: Shell
) -> None:
    """A forced stage of another machine: this one's run cache has an older result of the same task."""
    pipeline = finished_pipeline
    commit_and_remote(pipeline, tmp_path / "remote", shell)
    of(pipeline).push(quiet)
    other = another_clone(pipeline, shell)
    outcome(other, "prepare")
    outcome(other, "train@a")
    (other / "models/a.txt").write_text("trained again, elsewhere")
    shell(other, "dvc", "commit", "--force", "train@a")
    of(other).push(quiet)
    made = of(other).outputs("train@a")
    of(pipeline).adopt_outputs("train@a", made, quiet)
    assert (pipeline / "models/a.txt").read_text() == "trained again, elsewhere"
    assert of(pipeline).outputs("train@a") == made
    assert outcomes(pipeline, "train@a") == {"prepare": "unchanged", "train@a": "unchanged"}
    with pytest.raises(RemoteError):
        of(pipeline).adopt_outputs("train@a", [made[0] | {"md5": "0" * 32}], quiet)


@pytest.mark.slow
def test_dvc_lock_does_not_depend_on_the_order_in_which_stages_ran(finished_pipeline: Path, shell: Shell) -> None:
    pipeline = finished_pipeline
    other = another_clone(pipeline, shell)
    for stage in ("prepare", "train@b", "train@a", "report"):
        outcome(other, stage)
    ran = (pipeline / "dvc.lock").read_bytes()
    assert (other / "dvc.lock").read_bytes() != ran
    for folder in (pipeline, other):
        of(folder).sort_lock()
        assert (folder / "dvc.lock").read_bytes() == ran
    assert outcomes(other, *STAGES) == dict.fromkeys(STAGES, "unchanged")


def test_fingerprint_depends_on_command_and_contents(finished_pipeline: Path) -> None:
    pipeline = finished_pipeline
    first = of(pipeline).fingerprint("train@a")
    assert of(pipeline).fingerprint("train@a") == first
    assert of(pipeline).fingerprint("train@b") != first
    set_variant(pipeline, "a", eta=1 / 60)
    second = of(pipeline).fingerprint("train@a")
    (pipeline / "prepared.txt").unlink()
    (pipeline / "prepared.txt").write_text("other")
    assert len({first, second, of(pipeline).fingerprint("train@a")}) == 3


def test_failure_has_exit_code_and_last_lines(trainable: Path) -> None:
    set_variant(trainable, "a", kl_coef=3.0)
    with pytest.raises(
        StageFailed, match=r"(?s)stage train@a failed with exit code 3 \(bad input\)\n.*training a"
    ) as error:
        outcome(trainable, "train@a")
    assert error.value.exit_code == 3


def test_one_call_runs_what_is_due_and_names_the_stage_that_failed(trainable: Path) -> None:
    set_variant(trainable, "a", clip_range=0.5)
    of(trainable).run_due(["train"], quiet)
    assert outcomes(trainable, "train") == dict.fromkeys(STAGES[:3], "unchanged")
    set_variant(trainable, "b", kl_coef=3.0)
    with pytest.raises(StageFailed, match=r"^stage train@b failed with exit code 3") as error:
        of(trainable).run_due([], quiet)
    assert (error.value.stage, error.value.exit_code) == ("train@b", 3)


@pytest.mark.parametrize("waits", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_killed_stage_is_reported_as_killed(
    trainable: Path, waits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the shell of DVC waits for the command, rather than become it, and exits with 137 for it."""
    if waits:
        shell = tmp_path / "waiting-shell"
        shell.write_text('#!/bin/sh\n/bin/sh "$@"\nexit $?\n')
        shell.chmod(0o755)
        monkeypatch.setenv("SHELL", str(shell))
    set_variant(trainable, "a", eta=1.0)

    def kill() -> None:
        psutil.Process(pid_of_training(trainable)).kill()

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(StageFailed, match="stage train@a was ended by SIGKILL") as error:
        outcome(trainable, "train@a")
    assert error.value.exit_code == -9
    killer.join()


@pytest.mark.parametrize(
    ("how", "deaf"),
    [
        ("stop", False),
        ("exception", True),
        pytest.param("stop", True, marks=pytest.mark.slow),
        pytest.param("exception", False, marks=pytest.mark.slow),
    ],
)
def test_ending_leaves_no_process(trainable: Path, how: str, deaf: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception in here, as Prefect raises on SIGTERM, or `stop` from another thread: not even a deaf one stays."""
    monkeypatch.setattr(pipeline, "stop_seconds", lambda: 1.0)
    monkeypatch.setattr(pipeline, "STOP_MARGIN", 0.0)
    set_variant(trainable, "a", eta=1.0)
    if deaf:
        work = trainable / "stages/work.py"
        work.write_text("import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + work.read_text())
    running = Commands()

    def end_when_it_trains(line: str) -> None:
        if line.startswith("training a"):
            pid_of_training(trainable)
            if how == "exception":
                raise KeyboardInterrupt
            threading.Thread(target=running.stop).start()

    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt if how == "exception" else CommandStoppedError):
        Pipeline(trainable, running).run("train@a", end_when_it_trains)
    assert time.monotonic() - start < 30
    assert has_ended(pid_of_training(trainable))
    if how == "stop":
        with pytest.raises(CommandStoppedError):
            Pipeline(trainable, running).run("train@b", quiet)
