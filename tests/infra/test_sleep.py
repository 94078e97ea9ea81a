"""A machine that sleeps, and a server that starts again, in the middle of a run."""

import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from infra.local_prefect import LocalPrefect, free_port
from tests.drills.watch import lives, load, seconds_until_gone, tree
from tests.flows.faults import training
from tests.waiting import wait_for

from .conftest import make_serve, processes, start_run, state, watched

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

SLEEP_SECONDS = 150
"""More than a run may be silent, 120 s."""


def asleep(root: psutil.Process, seconds: float) -> None:
    """Stop a process and all its descendants for some seconds, as sleep does."""
    family = tree(root)
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        if number == signal.SIGSTOP:
            time.sleep(seconds)


def give_up(serve: subprocess.Popen[bytes]) -> None:
    """Let `make serve` give up: its web server ends six times."""
    for _ in range(6):
        wait_for(lambda: processes(psutil.Process(serve.pid), "infra.reports"), 120, "a web server")
        for process in processes(psutil.Process(serve.pid), "infra.reports"):
            process.kill()
            wait_for(lambda process=process: not lives(process), 30, "its end")
    assert serve.wait(120) == 1


def kill(serve: subprocess.Popen[bytes]) -> None:
    """Kill `make serve` as a loss of power does; all that it started ends with it."""
    family = tree(psutil.Process(serve.pid))
    serve.kill()
    serve.wait()
    seconds_until_gone(family, 60)


@pytest.mark.parametrize("end", [kill, give_up])
def test_a_run_is_run_once_more_by_the_next_make_serve(
    end: Callable[[subprocess.Popen[bytes]], None], tmp_path: Path, make_pipeline: Callable[[Path], Path]
) -> None:
    """It began within minutes, and the pause is longer than timers are kept."""
    root, port = make_pipeline(tmp_path / "root"), free_port()
    prefect = LocalPrefect(root=root, home=root / ".prefect", port=port)
    with make_serve(root, port) as (serve, _):
        run = start_run(prefect, preset="smoke", overrides=training(600.0))
        family = psutil.Process(serve.pid)
        wait_for(lambda: processes(family, "stages.work train models/a.txt"), 180, "training")
        end(serve)
    time.sleep(100)
    with make_serve(root, port):
        start = time.monotonic()
        print(f"state at the start: {state(prefect, run)}; {load()}")  # noqa: T201
        wait_for(lambda: "CRASHED" in watched(prefect).states(run), 400, "crashed")
        crashed = time.monotonic() - start
        wait_for(lambda: state(prefect, run)[1] == 2, 400, "run once more")
        again = time.monotonic() - start
        print(f"Crashed {crashed:.1f} s, run again {again:.1f} s after the start; {load()}")  # noqa: T201


def test_a_run_survives_the_sleep_of_its_machine(
    tmp_path: Path, make_pipeline: Callable[[Path], Path]
) -> None:
    root, port = make_pipeline(tmp_path / "root"), free_port()
    with make_serve(root, port) as (serve, _):
        prefect = LocalPrefect(root=root, home=root / ".prefect", port=port)
        family = psutil.Process(serve.pid)
        run = start_run(prefect, preset="smoke", overrides=training(30.0))
        wait_for(lambda: processes(family, "stages.work train models/a.txt"), 180, "training")
        asleep(family, SLEEP_SECONDS)
        start = time.monotonic()
        wait_for(lambda: state(prefect, run)[0] in {"COMPLETED", "CRASHED", "FAILED"}, 400, "ended")
        states = {it["name"]: watched(prefect).states(it["id"]) for it in watched(prefect).children(run)}
        states["run"] = watched(prefect).states(run)
        print(f"ended {time.monotonic() - start:.1f} s after waking: {states}; {load()}")  # noqa: T201
        assert state(prefect, run) == ("COMPLETED", 1)
        assert not any("CRASHED" in each for each in states.values())
        assert list((root / ".prefect" / "published" / "runs").glob("*/smoke/run.json"))
