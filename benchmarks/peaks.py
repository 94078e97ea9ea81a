"""Peak resident memory of a stage's process."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

PROGRAM = """
import atexit, os, runpy, sys
def tell():
    with open("/proc/self/status") as status, open(os.environ["PEAK_FILE"], "w") as told:
        told.write(next(line.split()[1] for line in status if line.startswith("VmHWM")))
atexit.register(tell)
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
"""Runs a module and leaves its peak, in KiB, in a file. Not ru_maxrss: it starts at the parent's memory."""


def run_module(folder: Path, command: Sequence[str]) -> float:
    """Peak MiB of a module, given with its arguments, that runs as a process in a folder; an error of it is raised."""
    with tempfile.NamedTemporaryFile() as told:
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        environment = os.environ | {"PEAK_FILE": told.name, "PYTHONPATH": path}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *command],
            cwd=folder,
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(
                f"{shlex.join(command)} ended with exit code {done.returncode}:\n{done.stderr[-2000:]}"
            )
        return int(Path(told.name).read_text()) / 1024
