"""Processes that wait while another one works for longer than a collective may take, or fails, or is killed."""

import os
import signal
import sys
import time
from collections.abc import Callable
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


def by_main(processes: Processes, what: str) -> str:
    start = time.monotonic()
    processes.by_main(lambda: write(what))
    processes.gather([0])  # a collective of the training, entered by all once the first one has written
    return f"waited {time.monotonic() - start > COLLECTIVE_SECONDS}"


def by_all(processes: Processes, what: str) -> str:
    """The second one fails in work that both do."""
    processes.by_all(lambda: write(what) if processes.index == 1 else None)
    return ""


def gather(processes: Processes, what: str) -> str:
    """The second one is late, as with a slow scorer, or dies."""
    if processes.index == 1:
        write(what)
    return str(processes.gather([processes.index, "score"]))


def largest(processes: Processes, what: str) -> str:
    """The second one is late, or dies; the main one has the larger number."""
    if processes.index == 1:
        write(what)
    return str(processes.largest(3 - processes.index))


def in_one(work: Callable[[Processes, str], str], what: str) -> None:
    """One of two processes."""
    distributed.init_process_group("gloo", timeout=timedelta(seconds=COLLECTIVE_SECONDS))
    processes = Processes()
    processes.gather([0])
    try:
        print(work(processes, what))  # noqa: T201
    except ChunkGrpoError as error:
        print(f"{type(error).__name__} of process {error.process}: {error}")  # noqa: T201
        sys.exit(error.exit_code)
    finally:
        distributed.destroy_process_group()  # its threads would abort a process that ends


KILLED, LEFT = (-9, ""), (75, "TransientError of process None: another process has ended\n")


@pytest.mark.parametrize(
    ("work", "what", "ends"),
    [
        pytest.param(by_main, "slow", [(0, "waited True\n")] * 2, marks=pytest.mark.slow),
        (by_main, "full", [(3, "DataError of process 0: no space left\n")] * 2),
        (by_main, "killed", [KILLED, LEFT]),
        (by_all, "full", [(3, "DataError of process 1: no space left\n")] * 2),
        pytest.param(gather, "slow", [(0, "[0, 'score', 1, 'score']\n")] * 2, marks=pytest.mark.slow),
        (gather, "killed", [LEFT, KILLED]),
        pytest.param(largest, "slow", [(0, "3\n")] * 2, marks=pytest.mark.slow),
        (largest, "killed", [LEFT, KILLED]),
    ],
)
@pytest.mark.timeout(120)
def test_all_end_as_the_working_process_does(work, what, ends, tmp_path: Path) -> None:
    """And an error names the process in which it arose."""
    for (code, printed), (expected, told) in zip(in_pair(tmp_path, in_one, work, what), ends, strict=True):
        assert code == expected, printed
        assert told in printed
