"""A worker script of a user's, for interpreters without this package; it fails in a chosen way when told to.

What it is told stands in `options` of its settings for its start, and in the metadata of a batch's first image.
"""

import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import worker_protocol


def open_worker(start: worker_protocol.Start) -> worker_protocol.Worker:
    options = start.settings["options"]
    do = options.get("do")
    if do == "killed":
        os.kill(os.getpid(), 9)
    if do == "refuse":
        raise worker_protocol.DataError(f"no device but {start.device}")

    def close() -> None:
        if "closed" in options:
            time.sleep(0.2)
            Path(options["closed"]).touch()

    name = Path(options["name"]).read_text() if "name" in options else "script"
    return worker_protocol.Worker(name, 1, score, needs=[], close=close)


def score(batch: worker_protocol.Batch) -> worker_protocol.Answer:
    fail(batch.rows[0].metadata)
    return [float(sum(row.pixels)) for row in batch.rows], {}


def fail(told: Mapping[str, Any]) -> None:
    do = told.get("do")
    if do == "exit":
        os.write(1, b"one line\n")
        os.write(2, b"something is broken\n")
        os._exit(7)
    if do in ("child", "hang"):
        child = subprocess.Popen(["sleep", "600"], start_new_session=bool(told.get("apart")))
        if "pids" in told:
            Path(told["pids"]).write_text(f"{os.getpid()} {child.pid}")
        if do == "child":
            os._exit(7)
        time.sleep(600)


if __name__ == "__main__":
    worker_protocol.serve(open_worker)
