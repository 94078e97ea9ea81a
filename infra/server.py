"""`prefect server start`, with Python's garbage collection in a separate thread, and with `infra.gaps`.

With SQLite the server has an event loop and one thread per connection. A statement that SQLite refuses (`database is
locked`) leaves its cursor in a reference cycle. Freeing the cursor takes the mutex of its connection, which the
connection's thread holds while it waits for the database lock, up to 60 s. If the event loop's thread runs the garbage
collection, the transaction that holds the lock cannot commit, and the server blocks for that minute. A thread that only
collects garbage can wait without harm.
"""

from __future__ import annotations

import gc
import itertools
import os
import runpy
import sys
import threading
import time

_EVERY_SECONDS = 1.0
_FULL = 300  # every 300th collection includes the oldest generation, which takes a third of a second


def collect_apart() -> None:
    """Move the garbage collection of this process to one thread."""
    gc.disable()
    threading.Thread(target=_collect, name="garbage", daemon=True).start()


def _collect() -> None:
    for number in itertools.count(1):
        time.sleep(_EVERY_SECONDS)
        gc.collect(2 if number % _FULL == 0 else 1)


if __name__ == "__main__":
    os.environ.setdefault("PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE", "infra.gaps")
    from infra.gaps import GAPS, forgive  # here: Prefect reads its settings when it is imported

    forgive()
    GAPS.watch()
    collect_apart()
    sys.argv[1:1] = ["server", "start"]
    runpy.run_module("prefect", run_name="__main__", alter_sys=True)
