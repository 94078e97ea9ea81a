"""The file that shows a run's curves while it goes on: whole after every kind of end, and of no effect on the run."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from chunk_grpo.errors import DataError
from chunk_grpo.training import journal
from chunk_grpo.training.journal import FILE, Heading, Journal, Record, read_journal

from .conftest import Outcome

HEADING = Heading("abc", seed=1, iterations=9, done=0)


def read(folder: Path) -> Record:
    record = read_journal(folder / FILE)
    assert record is not None
    return record


def of(made: Outcome) -> dict[int, dict[str, float]]:
    """The metrics that a run returned, without those of a clock, by iteration."""
    found: dict[int, dict[str, float]] = {}
    for iteration, metric, value in made.without_times():
        found.setdefault(iteration, {})[metric] = value
    return found


def without_times(record: Record) -> dict[int, dict[str, float]]:
    return {
        iteration: {n: v for n, v in metrics.items() if not n.startswith(("seconds_", "rate_"))}
        for iteration, metrics in record.metrics.items()
    }


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes on by 10 s at each look, from 100 s."""
    looks = iter(range(100, 10_000, 10))
    monkeypatch.setattr(journal.time, "time", lambda: float(next(looks)))


def test_what_is_logged_is_read_at_once(tmp_path, clock):
    made = Journal(tmp_path / "chunk" / "seed-1", HEADING, [])
    folder = tmp_path / "chunk" / "seed-1"
    assert read(folder) == Record(HEADING, 100.0, {}, {}, None)
    made.log(0, {"heldout_reward": 0.5})
    made.log(1, {"reward_mean": 0.25, "reward_std": float("nan")})
    made.log(1, {"heldout_reward": 0.75})
    metrics = {0: {"heldout_reward": 0.5}, 1: {"reward_mean": 0.25, "heldout_reward": 0.75}}
    assert read(folder) == Record(HEADING, 100.0, metrics, {1: 120.0}, None)
    made.close(is_finished=True)
    assert read(folder) == Record(HEADING, 100.0, metrics, {1: 120.0}, 140.0)


@pytest.mark.parametrize("end", ['{"iteration": 2, "metr', '{"iteration": 2}', "\0\0\0\0\n", "\n"])
def test_reading_stops_at_incomplete_line(end, tmp_path):
    made = Journal(tmp_path, HEADING, [(1, "reward_mean", 0.5)])
    made.close(is_finished=False)
    with (tmp_path / FILE).open("a") as stream:
        stream.write(end)
    assert read(tmp_path).metrics == {1: {"reward_mean": 0.5}}


@pytest.mark.parametrize("content", ["", "iteration,reward\n", '{"format": "chunk_grpo.progress/1"}\n', "[1]\n"])
def test_another_file_is_refused(content, tmp_path):
    (tmp_path / FILE).write_text(content)
    with pytest.raises(DataError, match=r"progress\.jsonl: must be a journal of the format chunk_grpo\.progress/2"):
        read_journal(tmp_path / FILE)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "logs").write_text("a file")
    with pytest.raises(DataError, match=r"logs/chunk/progress\.jsonl: cannot write"):
        Journal(tmp_path / "logs" / "chunk", HEADING, [])


def test_full_disk_is_reported(tmp_path):
    made = Journal(tmp_path, HEADING, [])
    made._stream = Path("/dev/full").open("a")  # noqa: SIM115
    for write in (lambda: made.log(1, {"reward_mean": 0.5}), lambda: made.close(is_finished=False)):
        with pytest.raises(DataError, match=r"progress\.jsonl: cannot write: no space left"):
            write()


def test_a_run_leaves_all_its_metrics(train, tmp_path):
    made, record = train(tmp_path, seed=3, iterations=2), read(tmp_path / "logs" / "it")
    assert without_times(record) == of(made)
    assert record.heading == Heading("test", 3, 2, 0)
    assert sorted(record.times) == [1, 2]
    assert record.ended is not None
    assert record.started < record.times[1] < record.times[2] < record.ended
    assert record.metrics[2]["seconds_update"] > 0


def test_journal_lines_after_the_checkpoint_are_dropped_on_resume(train, tmp_path):
    """The process of five iterations dies without a word; its last checkpoint is that of the second."""
    train(tmp_path, iterations=2, checkpoint_every=2, keep_state=True)
    folder = tmp_path / "logs" / "it"
    with (folder / FILE).open("a") as stream:
        for iteration in (3, 4):
            entry: Mapping[str, Any] = {"iteration": iteration, "metrics": {"reward_mean": 99.0}, "at": 0.0}
            stream.write(json.dumps(entry) + "\n")
        stream.write('{"iteration": 5, "metrics": {"rew')
    made = train(tmp_path, iterations=3, checkpoint_every=2)
    record = read(folder)
    assert without_times(record) == of(made)
    assert record.heading.done == 2
    assert sorted(record.times) == [3]  # of earlier processes no times are known
