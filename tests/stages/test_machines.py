"""A stage on two machines: outputs on the one that started it, and an end for both."""

import os
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from chunk_grpo.code import code_digest
from chunk_grpo.environment import MACHINE, MACHINES, MACHINES_KEY, MASTER_ADDRESS, MASTER_PORT
from chunk_grpo.errors import ConfigError
from stages._launch.group import FAIL_SECONDS
from stages._launch.machines import LOST_SECONDS, Machines, Ticket, machines_of_environment
from stages.follow import refusal_of
from tests.conftest import ROOT
from tests.stages.started import STAGE, Started
from tests.stages.two_machines import Pair, a_key, pair
from tests.waiting import wait_for


@pytest.fixture
def started(tmp_path: Path) -> Started:
    (tmp_path / "first").mkdir()
    (tmp_path / "second" / "out").mkdir(parents=True)
    return Started(tmp_path / "first")


@pytest.fixture
def two(started: Started) -> Pair:
    """The machines' code has the stage for tests as one of its stages."""
    code = copied_code(started.folder.parent / "code")
    (code / "stages" / "started.py").write_text(STAGE)
    return pair(started.folder, started.folder.parent / "second", code=code)


def copied_code(folder: Path) -> Path:
    for package in ("stages", "chunk_grpo"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def command(started: Started, work: str) -> list[str]:
    return ["-m", "stages.started", *started.command(work)[2:]]


def said(two: Pair, machine: int) -> str:
    path = two.folders[machine] / "out" / str(machine)
    return path.read_text() if path.exists() else ""


def both_say(two: Pair, text: str) -> bool:
    return said(two, 0) == said(two, 1) == text


def run(two: Pair, started: Started, work: str) -> tuple[int, str]:
    """Exit code and messages of a stage on machine 0."""
    with two.started(0, command(started, work)) as stage:
        return stage.ended()


def test_each_machine_runs_its_part_of_one_stage_after_another(two: Pair, started: Started) -> None:
    with two.following() as follower:
        assert run(two, started, "nothing") == (0, "")
        assert both_say(two, "tiny 2 true 1")
        follower.says("with exit code 0")
        assert run(two, started, "the second fails")[0] == 1
        assert run(two, started, "nothing") == (0, "")
    assert list((two.folders[0] / "out").iterdir()) == [two.folders[0] / "out" / "0"]
    assert not (two.folders[1] / "runs").exists()


@pytest.mark.slow
def test_the_failure_of_a_machine_ends_the_other_with_its_message(two: Pair, started: Started) -> None:
    with two.following() as follower:
        code, errors = run(two, started, "the second fails")
        assert code == 1
        assert "machine 1 of 2: process 1 of 2 ended with exit code 1:\n" in errors
        assert "machine 1 of 2: KeyError: 'the second'\n" in errors
        follower.says("with exit code 1\n")


@pytest.mark.slow
def test_a_stop_on_machine_0_reaches_the_other_which_goes_on_waiting(two: Pair, started: Started) -> None:
    with two.following() as follower:
        with two.started(0, command(started, "train")) as stage:
            wait_for(lambda: both_say(two, "begun"), 60, "both")
            stage.process.terminate()
            code, errors = stage.ended()
        assert (code, both_say(two, "saved")) == (75, True), errors
        follower.says("with exit code 75")
        assert run(two, started, "nothing") == (0, "")


@pytest.mark.slow
def test_stop_on_follower_ends_follower_and_machine_0(two: Pair, started: Started) -> None:
    with two.following() as follower, two.started(0, command(started, "train")) as stage:
        wait_for(lambda: both_say(two, "begun"), 60, "both")
        follower.process.terminate()
        assert follower.ended()[0] == 75
        # The test's processes do not communicate. Those of a real stage end when one of them ends.
        stage.process.terminate()
        assert stage.ended()[0] == 75


@pytest.mark.slow
def test_a_follower_notices_at_once_that_machine_0_is_lost(two: Pair, started: Started) -> None:
    with two.following() as follower:
        with two.started(0, command(started, "hang")) as stage:
            wait_for(lambda: both_say(two, "begun"), 60, "both")
            begun = time.monotonic()
            os.killpg(stage.process.pid, signal.SIGKILL)
        follower.says("machine 0 of 2 is lost")
        assert time.monotonic() - begun < FAIL_SECONDS + 5
        assert said(two, 1) == "begun"  # it was killed, not asked
        assert run(two, started, "nothing") == (0, "")


@pytest.mark.slow
def test_machine_0_notices_in_time_that_the_other_is_lost(two: Pair, started: Started) -> None:
    with two.following() as follower, two.started(0, command(started, "hang")) as stage:
        wait_for(lambda: both_say(two, "begun"), 60, "both")
        begun = time.monotonic()
        os.killpg(follower.process.pid, signal.SIGKILL)
        code, errors = stage.ended()
        assert time.monotonic() - begun < LOST_SECONDS + FAIL_SECONDS + 5
    assert code == 75
    assert errors.startswith(
        "machine 1 of 2 is lost: its connection is closed or has been silent for 30 s. Start"
    )


def test_a_machine_with_other_code_ends_the_stage_before_it_begins(two: Pair, started: Started) -> None:
    other = copied_code(started.folder.parent / "other")
    with replace(two, code=(two.code[0], other)).following() as follower:
        code, errors = run(two, started, "nothing")
        follower.says("refused a stage: its code differs")
    assert code == 2
    assert (
        "error: machine 1 of 2: its code differs from that of machine 0: check out the same commit" in errors
    )
    assert said(two, 0) == ""


def test_a_follower_that_does_not_see_the_stages_folder_refuses(tmp_path: Path) -> None:
    ticket = Ticket(["-m", "stages.train"], str(tmp_path / "elsewhere"), "", code_digest(), 1, 1)
    assert refusal_of(ticket, here=False, own=code_digest()) == (
        f"{tmp_path / 'elsewhere'}: must be on a disk that all machines see at the same path. Mount it, or start "
        "`python -m stages.follow --here` in a clone of the repository"
    )
    assert refusal_of(ticket, here=True, own=code_digest()) == ""


PLACE = {MACHINES: "2", MACHINE: "1", MASTER_ADDRESS: "first", MASTER_PORT: "1234"}


def test_the_place_of_a_machine_is_read_from_torchruns_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert machines_of_environment() == Machines()
    for name, value in PLACE.items():
        monkeypatch.setenv(name, value)
    key = a_key(tmp_path / "key")
    monkeypatch.setenv(MACHINES_KEY, str(key))
    assert machines_of_environment() == Machines(2, 1, "first", 1234, key.read_bytes())
    monkeypatch.delenv(MASTER_PORT)
    assert machines_of_environment().port == 29500


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        (MACHINES, "1:4", "PET_NNODES: must be a whole number of at least 1, got '1:4'"),
        (MACHINE, "2", "PET_NODE_RANK: must be below PET_NNODES = 2, got 2"),
        (MACHINE, None, "PET_NODE_RANK: must be a whole number of at least 0, got None"),
        (
            MASTER_ADDRESS,
            None,
            "PET_MASTER_ADDR: must be the host name of machine 0, because PET_NNODES is 2",
        ),
    ],
)
def test_rejects_invalid_machine_variables(
    name: str, value: str | None, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each, given in {**PLACE, name: value}.items():
        monkeypatch.setenv(each, given) if given is not None else monkeypatch.delenv(each, raising=False)
    with pytest.raises(ConfigError, match=rule):
        machines_of_environment()


def test_a_stage_is_started_on_machine_0_alone(two: Pair, started: Started) -> None:
    with two.started(1, command(started, "nothing")) as stage:
        code, errors = stage.ended()
    assert code == 2
    assert errors.startswith(
        "error: PET_NODE_RANK: must be 0 where a stage is started, got 1; run `python -m stages"
    )
