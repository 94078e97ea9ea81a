"""Flow runs and workers that are killed: nothing lives on, and what was lost is run once more.

A training of the small pipeline has no checkpoint, so that a second one is seen from its process.
"""

import time
from typing import Literal

import psutil
import pytest

from tests.drills.watch import Watch, load, seconds_until_gone, tree
from tests.flows.faults import child_of, training, trainings
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

Pool = Literal["cpu", "gpu"]
AGAIN_AFTER = 300
"""Seconds after which a lost run is run once more, by infra/automations.yaml."""
WITHOUT_HEARTBEAT = 120 + 60
"""Within so many seconds a run that nobody reports must have ended: three minutes."""


class Victims:
    """A run whose child trains, and what of it is killed."""

    def __init__(self, watch: Watch, seconds: float) -> None:
        self.watch = watch
        self.run = watch.start(preset="smoke", until="train@a", overrides=training(seconds))
        self.child = child_of(watch, self.run)
        self.engines = {"cpu": watch.engine(self.run), "gpu": watch.engine(self.child)}
        self.workers = {pool: psutil.Process(engine.ppid()) for pool, engine in self.engines.items()}
        self.killed = 0.0

    def kill(self, *processes: psutil.Process) -> None:
        """Kill them, with nobody left of what they had started ten seconds later."""
        trees = {process for root in processes for process in tree(root)}
        self.killed = time.monotonic()
        for process in processes:
            process.suspend()  # so that none of them sees another one end
        for process in processes:
            process.kill()
        seconds_until_gone(list(trees), 10)
        self.tell(f"{len(trees)} processes gone")

    def tell(self, what: str) -> None:
        print(f"{what} after {time.monotonic() - self.killed:.1f} s; {load()}")  # noqa: T201

    def crashed(self, run: str, seconds: float) -> None:
        """The first attempt of a run ends in time, by itself or by the automation."""
        wait_for(lambda: "CRASHED" in self.watch.states(run), seconds, f"{run} crashed")
        self.tell("Crashed")

    def completed(self, seconds: float) -> int:
        """The run completes in the end, and holds nothing; how often it was run."""
        wait_for(lambda: self.watch.run(self.run)["state_type"] == "COMPLETED", seconds, "completed")
        self.tell("Completed")
        assert (self.watch.busy("cpu"), self.watch.busy("gpu")) == (0, 0)
        return int(self.watch.run(self.run)["run_count"])

    def trainings(self) -> int:
        """Number of processes that began to train."""
        return len(trainings(self.watch, self.watch.children(self.run, "train@a"), "a"))

    def children(self) -> list[str]:
        """Final states of the training's flow runs."""
        return [child["state_type"] for child in self.watch.children(self.run, "train@a")]


def test_the_process_of_a_training_run_is_killed(watch: Watch) -> None:
    victims = Victims(watch, 20.0)
    victims.kill(victims.engines["gpu"])
    victims.crashed(victims.child, 30)
    assert victims.completed(120) == 1
    assert victims.children() == ["CRASHED", "COMPLETED"]
    log = watch.log(victims.run)
    assert "train@a was lost: " in log
    assert "It is started again: attempt 2 of 2." in log


def test_a_training_run_that_is_lost_twice_is_not_started_a_third_time(watch: Watch) -> None:
    victims = Victims(watch, 600.0)
    victims.kill(victims.engines["gpu"])
    wait_for(lambda: len(victims.children()) == 2, 60, "started again")
    second = child_of(watch, victims.run)
    victims.kill(watch.engine(second))
    parent = watch.ended(victims.run, 60)
    victims.tell("parent Failed")
    assert parent["state_type"] == "FAILED"
    assert "stage train@a by train/train-gpu: Crashed" in parent["state"]["message"]
    time.sleep(AGAIN_AFTER + 15)
    assert victims.children() == ["CRASHED", "CRASHED"]
    assert watch.run(victims.run)["state_type"] == "FAILED"


def test_the_process_of_the_run_is_killed_and_training_goes_on(watch: Watch) -> None:
    victims = Victims(watch, 90.0)
    victims.kill(victims.engines["cpu"])
    victims.crashed(victims.run, 30)
    wait_for(lambda: watch.run(victims.run)["run_count"] == 2, AGAIN_AFTER + 90, "run once more")
    assert len(victims.children()) == 1
    assert victims.completed(200) == 2
    assert victims.children() == ["COMPLETED"]
    assert victims.trainings() == 1


@pytest.mark.parametrize("pools", [("cpu",), ("gpu",), ("cpu", "gpu")], ids=" and ".join)
@pytest.mark.parametrize("what", ["worker", "machine"])
def test_workers_or_machines_are_lost(watch: Watch, what: str, pools: tuple[Pool, ...]) -> None:
    """A killed worker's run hears of it, and cancels its training; with a machine nobody is left to tell the server."""
    victims = Victims(watch, 20.0 + len(pools) + 0.5 * ("gpu" in pools) + 5.0 * (what == "machine"))
    kinds = [victims.workers, *([victims.engines] if what == "machine" else [])]
    victims.kill(*(kind[pool] for kind in kinds for pool in pools))
    for pool in pools:
        watch.start_worker(pool)
    lost = {"cpu": victims.run, "gpu": victims.child}
    # To cancel, where nobody would report that it did.
    is_asked = what == "worker" and len(pools) == 2
    for pool in pools[:1] if is_asked else pools:
        victims.crashed(lost[pool], WITHOUT_HEARTBEAT)
    if is_asked:
        wait_for(lambda: victims.children()[0] in ("CRASHED", "CANCELLED"), WITHOUT_HEARTBEAT, "child ended")
        victims.tell("child ended")
    assert victims.completed(AGAIN_AFTER + 210) == (2 if "cpu" in pools else 1)
    assert victims.children()[-1] == "COMPLETED"
    if what == "machine":
        assert victims.children()[:-1] == (["CRASHED"] if "gpu" in pools else [])
        assert victims.trainings() == (2 if "gpu" in pools else 1)
    elif pools == ("gpu",):
        assert victims.children()[:-1] == ["CRASHED"]
