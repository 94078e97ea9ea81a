"""A run is cancelled while two trainings run, on two workers, and a third one waits for a worker."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.drills.watch import Watch, load, seconds_until_gone, tree
from tests.flows.faults import child_of, served
from tests.small_pipeline import Shell
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


SLOW_SAVE = """
import signal
def save(number, frame):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(45)
    Path(os.environ["PREFECT_HOME"], "saved").touch()
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
"""
"""Start of a stage that saves a large checkpoint when stopped."""


@pytest.fixture
def watch(tmp_path: Path, make_pipeline: Callable[[Path], Path]) -> Iterator[Watch]:
    with served(tmp_path / "served", make_pipeline, gpu_workers=2) as made:
        yield made


def test_cancelling_a_run_ends_all_its_trainings(watch: Watch) -> None:
    plans = {"a": "guided", "b": "listed", "c": "listed"}
    variants = {name: {"objective": "chunk", "plan": plan, "eta": 10.0} for name, plan in plans.items()}
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
    quick = {name: each | {"eta": 0.5 / 60} for name, each in variants.items()}
    after = watch.start(preset="smoke", until="train", overrides={"variants": quick})
    assert watch.ended(after, 180)["state_type"] == "COMPLETED"


def test_a_training_saves_its_checkpoint_though_prefect_ends_its_run_before(
    tmp_path: Path, make_pipeline: Callable[[Path], Path], shell: Shell
) -> None:
    def make(folder: Path) -> Path:
        root = make_pipeline(folder)
        work = root / "stages" / "work.py"
        work.write_text(work.read_text().replace("kind, out =", SLOW_SAVE + "kind, out =", 1))
        shell(root, "git", "commit", "--quiet", "--all", "--message", "slow")
        return root

    with served(tmp_path / "served", make) as watch:
        variants = {"a": {"objective": "chunk", "plan": "guided", "eta": 10.0}}
        run = watch.start(preset="smoke", until="train@a", overrides={"variants": variants})
        wait_for(lambda: watch.children(run, "train@a"), 120, "the training")
        child = child_of(watch, run, "train@a")
        wait_for(lambda: watch.stage(child, "stages.work train"), 60, "its process")
        engine, start = watch.engine(child), time.monotonic()
        watch.cancel(run)
        seconds_until_gone([engine], 44)
        gone = time.monotonic() - start
        assert not (watch.prefect.home / "saved").exists()
        wait_for((watch.prefect.home / "saved").exists, 60, "the checkpoint")
        print(f"the run gone after {gone:.1f} s, saved after {time.monotonic() - start:.1f} s")  # noqa: T201
