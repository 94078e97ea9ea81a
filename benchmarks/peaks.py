"""What a stage's process took: seconds, resident memory, and memory of its tensors on a GPU."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

PROGRAM = """
import atexit, json, os, runpy, sys
def tell():
    torch = sys.modules.get("torch")
    on_device = torch is not None and torch.cuda.is_initialized()
    with open("/proc/self/status") as status, open(os.environ["PEAK_FILE"], "w") as told:
        kib = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
        json.dump([kib / 1024, torch.cuda.max_memory_allocated() if on_device else None], told)
atexit.register(tell)
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
"""Runs a module and leaves its peaks in a file. Not ru_maxrss: it starts at the parent's memory."""


@dataclass(frozen=True)
class Peaks:
    """What a process took."""

    seconds: float
    """Wall time, with the start of Python."""
    host_mib: float
    """Peak resident memory."""
    device_bytes: int | None
    """Peak of its tensors on the GPU; None: it used none."""


def run_module(folder: Path, command: Sequence[str]) -> Peaks:
    """Run a module, given with its arguments, as a process in a folder; an error of it is raised."""
    with tempfile.NamedTemporaryFile() as told:
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        environment = os.environ | {"PEAK_FILE": told.name, "PYTHONPATH": path}
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *command],
            cwd=folder,
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        seconds = time.perf_counter() - started
        if done.returncode:
            raise RuntimeError(
                f"{shlex.join(command)} ended with exit code {done.returncode}:\n{done.stderr[-2000:]}"
            )
        return Peaks(seconds, *json.loads(Path(told.name).read_text()))
