"""Trainings that are killed, or end with 75: what is told, what is freed, and that the next run goes on."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from chunk_grpo.environment import END_STALLED, STOP_SECONDS
from tests.drills.watch import Watch, load, seconds_until_gone, tree
from tests.flows.faults import child_of, fail_once, served, training, with_journal
from tests.small_pipeline import Shell
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_killed_training_fails_both_runs_in_seconds_and_frees_the_gpu(watch: Watch) -> None:
    run = watch.start(preset="smoke", until="train", overrides=training(600.0))
    child = child_of(watch, run)
    stage, engine = watch.stage(child, "train models/a.txt"), watch.engine(child)
    assert stage is not None
    others = tree(engine)
    start = time.monotonic()
    stage.kill()
    failed = watch.ended(child, 10)
    of_child = time.monotonic() - start
    parent = watch.ended(run, 20)
    print(f"training Failed after {of_child:.1f} s, run after {time.monotonic() - start:.1f} s; {load()}")  # noqa: T201
    assert (failed["state_type"], parent["state_type"]) == ("FAILED", "FAILED")
    for told in (failed, parent):
        assert "stage train@a was ended by SIGKILL" in told["state"]["message"]
    assert watch.outcomes(run)["train@a"] == "**failed**"
    seconds_until_gone(others, 10)
    # The next training has begun in the slot of this one, and is cancelled.
    wait_for(lambda: watch.busy("gpu") == 0, 10, "a free slot")
    after = watch.start(preset="smoke", until="train", overrides=training(1.0))
    assert watch.ended(after, 120)["state_type"] == "COMPLETED"
    assert watch.outcomes(after)["train@a"] == "ran"


def test_a_training_that_ends_with_75_is_tried_again(watch: Watch, shell: Shell) -> None:
    root = watch.prefect.root
    fail_once(root)
    shell(root, "git", "commit", "--quiet", "--all", "--message", "a server that is away at first")
    run = watch.start(preset="smoke", until="train", overrides=training(2.0))
    assert watch.ended(run, 180)["state_type"] == "COMPLETED"
    assert watch.outcomes(run)["train@a"] == "ran"
    (child,) = watch.children(run, "train@a")
    assert child["run_count"] == 1


def test_stalled_training_is_logged_ended_and_retried(
    tmp_path: Path, make_pipeline: Callable[[Path], Path], shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment of the workers says that it ends; nobody else would continue the stopped process."""
    monkeypatch.setenv(END_STALLED, "3")
    monkeypatch.setenv(STOP_SECONDS, "1")
    root = make_pipeline(tmp_path / "root")
    with_journal(root)
    shell(root, "git", "commit", "--quiet", "--all", "--message", "journals")
    with served(root) as watch:
        run = watch.start(preset="smoke", until="train", overrides=training(600.0))
        child = child_of(watch, run)
        stage = watch.stage(child, "train models/a.txt")
        assert stage is not None
        time.sleep(15)  # some iterations
        stage.suspend()
        start = time.monotonic()
        seconds = {}
        for text in ("train@a stalls: no new iteration for ", "train@a is ended, as ", "Attempt 2 of 3 at train@a"):
            wait_for(lambda text=text: all(text in watch.log(it) for it in (run, child)), 240, text)
            seconds[text] = round(time.monotonic() - start, 1)
        assert watch.ended(run, 180)["state_type"] == "COMPLETED"
        print(f"{seconds}, completed after {time.monotonic() - start:.1f} s; {load()}")  # noqa: T201
        assert watch.outcomes(run)["train@a"] == "ran"
        assert not stage.is_running()
