"""Waiting for something to happen."""

import time
from collections.abc import Callable
from typing import TypeVar

import psutil

Value = TypeVar("Value")


class TooLateError(AssertionError):
    """An event did not happen in time."""


def wait_for(happened: Callable[[], Value | None], limit: float, what: str) -> Value:
    """Call `happened` until it returns a true value; return that value."""
    deadline = time.monotonic() + limit
    while not (value := happened()):
        if time.monotonic() > deadline:
            raise TooLateError(f"{what}: not within {limit:.0f} s")
        time.sleep(0.02)
    return value


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or a zombie."""
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
