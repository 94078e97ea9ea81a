"""Processes that wait while the main one writes."""

import socket
import subprocess
import sys
from contextlib import ExitStack

import pytest

from tests.training.worker import environment


def run(what: str) -> list[tuple[int, str, str]]:
    """Exit code, output and messages of both."""
    with socket.socket() as probe, ExitStack() as stack:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        pair = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "tests.training.by_main", what],
                    env=environment(rank, port, "cpu"),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            for rank in range(2)
        ]
        told = [process.communicate(timeout=120) for process in pair]
        return [(process.returncode, *texts) for process, texts in zip(pair, told, strict=True)]


@pytest.mark.slow
def test_wait_for_main_process_exceeds_collective_timeout():
    for code, out, errors in run("slow"):
        assert (code, out) == (0, "waited True\n"), errors


def test_all_fail_as_the_main_process_does():
    for code, out, errors in run("full"):
        assert (code, out) == (3, "DataError: no space left\n"), errors


@pytest.mark.timeout(120)
def test_other_processes_end_at_once_if_main_is_killed():
    main, other = run("killed")
    assert main[0] == -9
    assert other[:2] == (
        75,
        "TransientError: another process has ended\n",
    ), other[2]
