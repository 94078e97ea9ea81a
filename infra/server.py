"""`prefect server start`, with Python's garbage collected in a thread of its own.

With SQLite the server has an event loop and a thread for each connection. A statement that SQLite refuses (`database is
locked`) leaves its cursor in a reference cycle. Freeing such a cursor takes the mutex of its connection, and while that
connection waits for the database's lock, up to 60 s, its thread keeps the mutex. If the event loop's thread is the one
that collects, nobody commits the transaction that has the lock: the whole server stands still for the minute. A thread
that does nothing but collect may wait.
"""

from __future__ import annotations

import gc
import itertools
import runpy
import sys
import threading
import time

_EVERY_SECONDS = 1.0
_FULL = 300  # every so many times also what has lived longer, which takes a third of a second


def collect_apart() -> None:
    """From now on no thread of this process collects garbage but one."""
    gc.disable()
    threading.Thread(target=_collect, name="garbage", daemon=True).start()


def _collect() -> None:
    for number in itertools.count(1):
        time.sleep(_EVERY_SECONDS)
        gc.collect(2 if number % _FULL == 0 else 1)


if __name__ == "__main__":
    collect_apart()
    sys.argv[1:1] = ["server", "start"]
    runpy.run_module("prefect", run_name="__main__", alter_sys=True)
