"""Do something again and again while something else goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context


@contextmanager
def repeating(action: Callable[[], None], seconds: float) -> Iterator[None]:
    """Call `action` every so many seconds in a thread that has this one's context variables, and once at the end."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(seconds):
            action()
        action()

    thread = threading.Thread(target=copy_context().run, args=(repeat,))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
