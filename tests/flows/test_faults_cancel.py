"""A run is cancelled while two trainings run, on two workers, and a third one waits for a worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from infra.drills.watch import Watch, load, seconds_until_gone, tree, wait_for
from tests.flows.faults import child_of, served

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def watch(tmp_path: Path, make_pipeline: Callable[[Path], Path]) -> Iterator[Watch]:
    with served(tmp_path / "served", make_pipeline, gpu_workers=2) as made:
        yield made


def test_cancelling_a_run_ends_all_its_trainings(watch: Watch) -> None:
    plans = {"a": "guided", "b": "listed", "c": "listed"}
    variants = {name: {"objective": "chunk", "plan": plan, "eta": 600.0} for name, plan in plans.items()}
    run = watch.start(preset="smoke", until="train", overrides={"variants": variants})
    wait_for(lambda: len(watch.children(run)) == 3, 120, "three trainings asked for")

    def training() -> list[str]:
        names = [child["name"] for child in watch.children(run) if child["state_type"] == "RUNNING"]
        return [name for name in names if name.startswith("train@")]  # it has its name when it begins

    wait_for(lambda: len(training()) == 2, 120, "two of them have a worker")
    (waiting,) = (child for child in watch.children(run) if child["state_type"] == "SCHEDULED")
    children = [child_of(watch, run, name) for name in training()]
    processes = [process for each in (*children, run) for process in tree(watch.engine(each))]
    start = time.monotonic()
    watch.cancel(run)
    seconds_until_gone(processes, 60)
    gone = time.monotonic() - start
    for each in (run, *children, waiting["id"]):
        assert watch.ended(each, 60)["state_type"] == "CANCELLED"
    ended = time.monotonic() - start
    print(f"{len(processes)} processes gone after {gone:.1f} s, all Cancelled after {ended:.1f} s; {load()}")  # noqa: T201
    assert "RUNNING" not in watch.states(waiting["id"])
    assert (watch.busy("cpu"), watch.busy("gpu")) == (0, 0)
    quick = {name: each | {"eta": 0.5} for name, each in variants.items()}
    after = watch.start(preset="smoke", until="train", overrides={"variants": quick})
    assert watch.ended(after, 180)["state_type"] == "COMPLETED"
