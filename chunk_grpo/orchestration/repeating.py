"""Call a function periodically in a background thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context


@contextmanager
def repeating(action: Callable[[], None], seconds: float) -> Iterator[None]:
    """Call `action` every `seconds` in a thread with this thread's context variables, and once at the end."""
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
