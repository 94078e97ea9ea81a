"""A training process that is killed: what is told, what is freed, and that the next run goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from infra.automations import AGAIN_AFTER_SECONDS
from tests.drills.watch import Watch, load, seconds_until_gone, tree, wait_for
from tests.flows.faults import child_of, served, training

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def watch(tmp_path_factory: pytest.TempPathFactory, make_pipeline: Callable[[Path], Path]) -> Iterator[Watch]:
    with served(tmp_path_factory.mktemp("served"), make_pipeline) as made:
        yield made


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


def test_a_stage_error_is_not_tried_again(watch: Watch) -> None:
    failing = {"variants": {"a": {"kl_coef": 3.0}}}
    run = watch.start(preset="smoke", until="train@a", overrides=failing)
    assert watch.ended(run, 120)["state_type"] == "FAILED"
    time.sleep(AGAIN_AFTER_SECONDS + 15)  # as long as a lost run takes to be scheduled again
    found = watch.run(run)
    assert (found["state_type"], found["run_count"]) == ("FAILED", 1)
    assert len(watch.children(run)) == 1
