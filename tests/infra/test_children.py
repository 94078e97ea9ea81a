"""Children of `make serve` that end."""

import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from infra import children
from infra.children import Children
from infra.local_prefect import stop_trees
from infra.setup import SetUpError
from tests.waiting import wait_for

SLEEP = [sys.executable, "-c", "import time; time.sleep(300)"]


class Clock:
    """The monotonic clock of infra.children, set by a test."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(children, "time", clock)
    return clock


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Children]:
    """Children `first` and `second`, which sleep."""
    started = Children(tmp_path, tmp_path)
    for name in ("first", "second"):
        started.start(name, SLEEP, {})
    yield started
    stop_trees([psutil.Process(process.pid) for process in started.processes() if process.poll() is None])
    for process in started.processes():
        process.wait()


def kill(started: Children, name: str) -> None:
    started.process(name).kill()
    wait_for(lambda: not started.is_running(name), 10, "ended")


def test_a_child_that_ended_is_started_again_after_a_pause(
    two: Children, clock: Clock, tmp_path: Path
) -> None:
    first, second = two.process("first"), two.process("second")
    said: list[str] = []
    two.start_again(said.append)
    assert said == []
    kill(two, "first")
    two.start_again(said.append)
    assert said == [f"first ended with -9 and is started again in 1 s; see {tmp_path / 'first.log'}"]
    with pytest.raises(SetUpError, match=r"^first ended with -9; see .*first\.log$"):
        two.check()
    clock.now += 0.9
    two.start_again(said.append)
    assert not two.is_running("first")
    clock.now += 0.2
    two.start_again(said.append)
    two.check()
    assert two.process("first") != first
    assert two.process("second") == second
    assert len(said) == 1


def test_pauses_grow_and_a_child_that_ends_again_and_again_is_given_up(two: Children, clock: Clock) -> None:
    said: list[str] = []
    for pause in children.PAUSES:
        kill(two, "first")
        two.start_again(said.append)
        assert f"started again in {pause:.0f} s" in said[-1]
        clock.now += pause
        two.start_again(said.append)
    kill(two, "first")
    with pytest.raises(
        SetUpError, match=r"^first ended 6 times within 10 minutes, now with -9; see .*first\.log$"
    ):
        two.start_again(said.append)
    assert two.is_running("second")


def test_old_exits_do_not_lengthen_the_pause(two: Children, clock: Clock) -> None:
    said: list[str] = []
    for _ in range(len(children.PAUSES) + 3):
        kill(two, "second")
        two.start_again(said.append)
        clock.now += children.PAUSES[0]
        two.start_again(said.append)
        clock.now += children.FORGET_SECONDS
    assert [text.split(";")[0] for text in said] == [
        "second ended with -9 and is started again in 1 s"
    ] * len(said)
