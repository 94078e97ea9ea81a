"""chunk_grpo/orchestration/stalls.py: when a silent training counts as stalled, and its end."""

import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from chunk_grpo.errors import ConfigError
from chunk_grpo.orchestration import stalls
from chunk_grpo.orchestration.commands import Commands
from chunk_grpo.orchestration.outcomes import StageFailed
from chunk_grpo.orchestration.stalls import Silence, end_after, watched
from chunk_grpo.training.journal import Heading, Journal, Record

HEADING = Heading("some", 0, 100, 0)


def record(done: int, started: float = 1.0, ended: float | None = None) -> Record:
    """The journal of a training that has done so many iterations."""
    metrics = {i: {"reward_mean": 0.5} for i in range(done + 1)}
    return Record(HEADING, started, metrics, {i: float(i) for i in range(1, done + 1)}, ended)


def silence(*looks: tuple[Record | None, int], before: float | None = None) -> Silence:
    """Each journal is found so many times, 5 s apart."""
    made = Silence(before)
    for found, times in looks:
        for _ in range(times):
            made.look(found, 5.0)
    return made


def test_silence_is_compared_with_longest_iteration_interval() -> None:
    # Line 1 comes with the 4th look after the start, line 2 with the 3rd after that: 20 s and 15 s.
    made = silence((None, 7), (record(0), 4), (record(1), 3), (record(2), 41))
    assert (made.longest, made.seconds) == (20.0, 200.0)
    assert not made.exceeds(10)
    made.look(record(2), 5.0)
    assert made.exceeds(10)
    assert not made.exceeds(11)


def test_sleep_of_the_machine_is_no_silence_and_no_long_iteration() -> None:
    made = silence((record(0), 1), (record(1), 1))
    made.look(record(1), 8 * 3600.0)
    assert (made.longest, made.seconds) == (5.0, 10.0)
    made.look(record(2), 8 * 3600.0)
    assert (made.longest, made.seconds) == (20.0, 0.0)


def test_no_stall_before_first_and_after_last_iteration() -> None:
    assert not silence((None, 900)).exceeds(1)
    assert not silence((record(0), 900)).exceeds(1)
    assert silence((record(0), 1), (record(1), 900)).exceeds(1)
    assert not silence((record(0), 1), (record(1), 1), (record(1, ended=9.0), 900)).exceeds(1)


def test_the_journal_of_an_earlier_attempt_does_not_count() -> None:
    earlier, again = record(3, started=1.0), record(3, started=2.0)
    made = silence((earlier, 900), before=1.0)
    assert not made.exceeds(1)
    # Resumed after iteration 3, whose time is of the earlier process.
    resumed = replace(again, heading=replace(HEADING, done=3), times={})
    for _ in range(900):
        made.look(resumed, 5.0)
    assert not made.exceeds(1)


TRAINS = """\
import time
from pathlib import Path
from chunk_grpo.training.journal import Heading, Journal
journal = Journal(Path("logs/chunk/seed-0"), Heading("some", 0, 9, 0), [])
for iteration in range(1, 10):
    time.sleep(0.1)
    journal.log(iteration, {"reward_mean": 0.5})
    while iteration == 3 and not Path("go").exists():
        time.sleep(0.05)
journal.close(is_finished=True)
"""


Train = Callable[[stalls.Log], None]


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Train:
    """Train, and stand still at iteration 3 until there is a file `go`; the journal is looked at every 0.1 s."""
    monkeypatch.setattr(stalls, "_LOOK_SECONDS", 0.1)
    old = Journal(tmp_path / "logs/chunk/seed-0", HEADING, [])
    old.log(1, {"reward_mean": 0.5})
    old.close(is_finished=False)

    def run(warn: stalls.Log) -> None:
        commands = Commands()
        path = {"PYTHONPATH": str(Path(stalls.__file__).parents[2])}
        with watched("train@chunk-0", tmp_path, commands, warn):
            code = commands.run([sys.executable, "-c", TRAINS], tmp_path, path, lambda _: None)
            assert not commands.stopping.is_set()
            if code:
                raise StageFailed("train@chunk-0", code, ["some line"])

    return run


def test_stall_and_its_end_are_reported_once(train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(stalls.END_STALLED, raising=False)
    monkeypatch.setattr(stalls, "_WARN_AFTER", 3.0)
    warnings: list[str] = []

    def warn(text: str) -> None:
        warnings.append(text)
        (tmp_path / "go").touch()

    train(warn)
    assert warnings[0].startswith("train@chunk-0 stalls: no new iteration for ")
    assert warnings[1] == "train@chunk-0 continues."


def test_a_stalled_training_is_ended_if_the_environment_says_so(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(stalls.END_STALLED, "3")
    warnings: list[str] = []
    with pytest.raises(StageFailed, match="train@chunk-0 stalls: no new iteration") as caught:
        train(warnings.append)
    assert caught.value.exit_code == 75
    assert len(warnings) == 2


def test_a_stage_that_trains_nothing_is_not_watched(tmp_path: Path) -> None:
    before = threading.active_count()
    with watched("score@chunk-0-clip", tmp_path, Commands(), print):
        assert threading.active_count() == before


def test_environment_sets_stall_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(stalls.END_STALLED, raising=False)
    assert end_after() is None
    monkeypatch.setenv(stalls.END_STALLED, "2.5")
    assert end_after() == 2.5
    for wrong in ("0", "0.9", "nan", "inf", "yes"):
        monkeypatch.setenv(stalls.END_STALLED, wrong)
        with pytest.raises(ConfigError, match=r"^CHUNK_GRPO_END_STALLED: must be a number of at least 1"):
            end_after()
