"""Processes that wait while another one works for longer than a collective may take, or fails, or is killed."""

import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
from torch import distributed

from chunk_grpo.errors import ChunkGrpoError, DataError
from chunk_grpo.training.processes import Processes
from tests.training.worker import in_pair

COLLECTIVE_SECONDS = 4


def write(what: str) -> None:
    if what == "slow":
        time.sleep(2 * COLLECTIVE_SECONDS)
    elif what == "full":
        raise DataError("no space left")
    else:
        os.kill(os.getpid(), signal.SIGKILL)


def wait_for_main(what: str) -> None:
    """One of two processes."""
    distributed.init_process_group("gloo", timeout=timedelta(seconds=COLLECTIVE_SECONDS))
    processes, start = Processes(), time.monotonic()
    processes.gather([0])
    try:
        processes.by_main(lambda: write(what))
        processes.gather([0])  # a collective of the training, entered by all once the first one has written
        print(f"waited {time.monotonic() - start > COLLECTIVE_SECONDS}")  # noqa: T201
    except ChunkGrpoError as error:
        print(f"{type(error).__name__}: {error}")  # noqa: T201
        sys.exit(error.exit_code)
    finally:
        distributed.destroy_process_group()  # its threads would abort a process that ends


@pytest.mark.parametrize(
    ("what", "ends"),
    [
        pytest.param("slow", [(0, "waited True\n")] * 2, marks=pytest.mark.slow),
        ("full", [(3, "DataError: no space left\n")] * 2),
        ("killed", [(-9, ""), (75, "TransientError: another process has ended\n")]),
    ],
)
@pytest.mark.timeout(120)
def test_all_end_as_the_main_process_does(what: str, ends: list[tuple[int, str]], tmp_path: Path) -> None:
    for (code, printed), (expected, told) in zip(in_pair(tmp_path, wait_for_main, what), ends, strict=True):
        assert code == expected, printed
        assert told in printed


def fail_in_the_other(what: str) -> None:
    """One of two processes; the second one fails in work that both do."""
    distributed.init_process_group("gloo", timeout=timedelta(seconds=60))
    processes = Processes()
    try:
        processes.by_all(lambda: write(what) if processes.index == 1 else None)
    except ChunkGrpoError as error:
        print(f"process {error.process}: {error}")  # noqa: T201
    finally:
        distributed.destroy_process_group()


@pytest.mark.timeout(120)
def test_an_error_names_the_process_in_which_it_arose(tmp_path: Path) -> None:
    ends = in_pair(tmp_path, fail_in_the_other, "full")
    assert [code for code, _ in ends] == [0, 0]
    assert all("process 1: no space left\n" in printed for _, printed in ends)


def gather_from_the_other(what: str) -> None:
    """One of two processes; the second one is late, as with a slow scorer, or dies."""
    distributed.init_process_group("gloo", timeout=timedelta(seconds=COLLECTIVE_SECONDS))
    processes = Processes()
    processes.gather([0])
    if processes.index == 1:
        write(what)
    try:
        print(processes.gather([processes.index, "score"]))  # noqa: T201
    except ChunkGrpoError as error:
        print(f"{type(error).__name__}: {error}")  # noqa: T201
        sys.exit(error.exit_code)
    finally:
        distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("what", "ends"),
    [
        pytest.param("slow", [(0, "[0, 'score', 1, 'score']\n")] * 2, marks=pytest.mark.slow),
        ("killed", [(75, "TransientError: another process has ended\n"), (-9, "")]),
    ],
)
@pytest.mark.timeout(120)
def test_a_gather_waits_for_a_late_process_and_not_for_a_dead_one(
    what: str, ends: list[tuple[int, str]], tmp_path: Path
) -> None:
    found = in_pair(tmp_path, gather_from_the_other, what)
    for (code, printed), (expected, told) in zip(found, ends, strict=True):
        assert code == expected, printed
        assert told in printed
