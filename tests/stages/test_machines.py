"""A stage on two machines: one starts it, the other follows, and both end together."""

import os
import signal
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from chunk_grpo.environment import MACHINE, MACHINES, MASTER_ADDRESS, NOTES
from chunk_grpo.errors import ConfigError, DataError, TransientError
from stages._launch import machines as _machines
from stages._launch.elastic import Job, Machines, Outcome
from stages._launch.machines import END_SECONDS, LOST_SECONDS, Board, machines_of_environment
from stages.follow import refusal_of
from tests.stages.started import Started
from tests.stages.two_machines import Pair
from tests.waiting import wait_for

JOB = Job("name", ["-m", "stages.train"], "/", None, 2, "first", 1)


@pytest.fixture
def started(tmp_path: Path) -> Started:
    return Started(tmp_path, 2)


@pytest.fixture
def two(started: Started, tmp_path: Path) -> Pair:
    return Pair(started.folder, tmp_path / "notes")


def run(two: Pair, started: Started, work: str) -> tuple[int, str]:
    """Exit code and messages of a stage on machine 0."""
    with two.started(0, started.command(work)[1:]) as stage:
        return stage.ended()


def test_each_machine_runs_its_part_of_one_stage_after_another(two: Pair, started: Started) -> None:
    with two.following() as follower:
        code, errors = run(two, started, "the second fails")
        assert (code, errors.splitlines()[-1]) == (1, "machine 1 of 2: KeyError: 'the second'")
        assert "machine 1 of 2: process 1 of 2 ended with exit code 1:\n" in errors
        assert run(two, started, "nothing") == (0, "")
        assert started.all_say("tiny 2 true 1")
        follower.says("with exit code 0")


@pytest.mark.slow
def test_a_stop_on_machine_0_reaches_the_other_which_goes_on_waiting(two: Pair, started: Started) -> None:
    with two.following() as follower:
        with two.started(0, started.command("train")[1:]) as stage:
            wait_for(lambda: started.all_say("begun"), 60, "both")
            stage.process.terminate()
            code, errors = stage.ended()
        assert (code, started.all_say("saved")) == (75, True), errors
        follower.says("with exit code 75")
        assert run(two, started, "nothing") == (0, "")


@pytest.mark.slow
def test_a_stop_of_the_follower_ends_both(two: Pair, started: Started) -> None:
    with two.following() as follower, two.started(0, started.command("train")[1:]) as stage:
        wait_for(lambda: started.all_say("begun"), 60, "both")
        follower.process.terminate()
        assert follower.ended()[0] == 75
        # The test's processes do not communicate. Those of a real stage end when one of them ends.
        stage.process.terminate()
        assert stage.ended()[0] == 75


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_lost_machine_ends_the_other_in_time(victim: int, two: Pair, started: Started) -> None:
    """The killed processes of a real stage close their connections, and the others end at once."""
    with two.following() as follower:
        with two.started(0, started.command("hang")[1:]) as stage:
            wait_for(lambda: started.all_say("begun"), 60, "both")
            begun, lost = time.monotonic(), (stage, follower)[victim]
            os.killpg(lost.process.pid, signal.SIGKILL)
            text = f"machine {victim} of 2 is lost: it has been silent for 30 s. Start it again"
            (follower, stage)[victim].says(text)
            assert time.monotonic() - begun < LOST_SECONDS + END_SECONDS + 10
            if victim:
                assert stage.ended()[0] == 75
        if not victim:
            assert run(two, started, "nothing") == (0, "")


@pytest.mark.parametrize(
    ("job", "gpus", "refusal"),
    [
        (JOB, 0, ""),
        (JOB, 2, ""),
        (JOB, 1, "it has 1 GPUs, and must have at least 2, as machine 0 uses; set CHUNK_GRPO_PROCESSES to 1"),
        (Job("name", [], "/elsewhere", None, 1, "first", 1), 0, "/elsewhere: must be on a disk that all machines see"),
    ],
)
def test_a_follower_refuses_what_it_cannot_run(job: Job, gpus: int, refusal: str) -> None:
    found = refusal_of(job, gpus)
    assert found.startswith(refusal) and bool(found) is bool(refusal)


@pytest.fixture
def boards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Board]:
    monkeypatch.setattr(_machines, "_BEAT_SECONDS", 0.01)
    return [Board(Machines(2, index, "first", tmp_path), 600) for index in (0, 1)]


def test_a_job_is_called_once_and_a_refusal_ends_the_stage(boards: list[Board]) -> None:
    first, second = boards
    first._say(job=asdict(JOB))
    assert second.next_job("") == JOB
    second.answer(JOB, "too small")
    with pytest.raises(ConfigError, match="machine 1 of 2: too small"):
        first.call(JOB)
    for board in boards:
        board.close()


def test_without_a_common_disk_no_machine_answers_and_the_sentence_says_so(
    boards: list[Board], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_machines, "JOIN_SECONDS", 0.1)
    with pytest.raises(TransientError, match=f"machine 1 of 2: start .*={tmp_path}, which must be on a disk that"):
        boards[0].call(JOB)
    for board in boards:
        board.close()


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="must be a folder on a disk that all machines see"):
        Board(Machines(2, 0, "first", tmp_path / "file"), 600)


def test_the_failure_that_explains_the_others_counts() -> None:
    ranked = [Outcome(3), Outcome(75, is_lost=True), Outcome(137), Outcome(75)]
    assert sorted([ranked[i] for i in (2, 3, 0, 1)], key=Outcome.rank) == ranked


PLACE = {MACHINES: "2", MACHINE: "0", MASTER_ADDRESS: "first", NOTES: "/notes"}


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        (MACHINES, "1:4", "PET_NNODES: must be a whole number of at least 1, got '1:4'"),
        (MACHINE, "2", "PET_NODE_RANK: must be below PET_NNODES = 2, got 2"),
        (MACHINE, None, "PET_NODE_RANK: must be below PET_NNODES = 2, got None"),
        (MASTER_ADDRESS, None, "PET_MASTER_ADDR: must be the host name of machine 0, because PET_NNODES is 2"),
        (NOTES, None, "CHUNK_GRPO_MACHINES: must be a folder on a disk that all machines see, because"),
    ],
)
def test_the_place_of_a_machine_is_read_from_the_environment(
    name: str, value: str | None, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert machines_of_environment() == Machines()
    for each, given in PLACE.items():
        monkeypatch.setenv(each, given)
    assert machines_of_environment() == Machines(2, 0, "first", Path("/notes"))
    monkeypatch.delenv(name) if value is None else monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=rule):
        machines_of_environment()


def test_a_stage_is_started_on_machine_0_alone(two: Pair, started: Started) -> None:
    with two.started(1, started.command("nothing")[1:]) as stage:
        code, errors = stage.ended()
    assert code == 2
    assert errors.startswith("error: PET_NODE_RANK: must be 0 where a stage is started, got 1; run `python -m stages")
