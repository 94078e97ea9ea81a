"""Run manifests: time, duration and environment of a stage's run. The report reads these files."""

import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from chunk_grpo.artifacts.io import read_json, write_json
from chunk_grpo.artifacts.storage import Location
from chunk_grpo.errors import DataError

MANIFEST_VERSION = 1
_PACKAGES = ("torch", "diffusers", "transformers", "accelerate", "numpy", "pyarrow")


@dataclass(frozen=True)
class RunManifest:
    """One stage's run."""

    manifest_version: int
    """Version of the manifest's format."""
    stage: str
    """DVC stage, e.g. `train@chunk`."""
    started_at: str
    """Start time, UTC, ISO 8601."""
    seconds: float
    """Wall time."""
    peak_memory_mib: float
    """Peak resident memory of the process in MiB, with the files that it maps."""
    python: str
    """Python version."""
    packages: dict[str, str]
    """Installed versions of the numerical packages, such as torch."""
    system: str
    """Operating system and architecture."""
    cpu: str
    """CPU model."""
    cpu_count: int
    """Number of logical cores."""
    accelerator: str | None
    """GPU model, or null."""
    commit: str | None
    """Commit of the checkout when the run began, or null outside one."""
    notes: dict[str, str | int | float]
    """Additional values: `peak_gpu_mib`, the most that tensors of this process took of its GPU; `GRAPHS`; of a training
    also `ITERATIONS`."""


COMMIT_OF_COPY = ".commit"
"""File beside a copy of the code."""

Notes = dict[str, str | int | float]

ITERATIONS = "iterations"
"""Note of a training: iterations of this process, to which its seconds belong."""


GRAPHS = "compiled_graphs"
"""Note of a stage in which torch compiled: graphs of this process, read from the compiler's cache or not."""


@contextmanager
def measured_run(stage: str, location: Location) -> Iterator[Notes]:
    """Measure a stage's run, the enclosed block, and write its manifest; after an error nothing is written.

    Yields empty notes, which the stage can fill; the GPU's peak and the number of compiled graphs are added.
    """
    notes: Notes = {}
    started_at = datetime.now(UTC)
    start, graphs = time.perf_counter(), _compiled_graphs()
    yield notes
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        notes["peak_gpu_mib"] = round(torch.cuda.max_memory_allocated() / 2**20, 1)
    if own := _compiled_graphs() - graphs:
        notes[GRAPHS] = own
    manifest = RunManifest(
        manifest_version=MANIFEST_VERSION,
        stage=stage,
        started_at=started_at.isoformat(timespec="seconds"),
        seconds=round(time.perf_counter() - start, 3),
        peak_memory_mib=round(_peak_memory_mib(), 1),
        python=platform.python_version(),
        packages=_installed(),
        system=f"{platform.system()} {platform.machine()}",
        cpu=cpu_name(),
        cpu_count=os.cpu_count() or 1,
        accelerator=_accelerator(),
        commit=code_commit(),
        notes=notes,
    )
    write_json(asdict(manifest), location)


def read_manifest(location: Location) -> RunManifest:
    """Read a manifest written by `measured_run`."""
    record: Any = read_json(location)
    found = record.get("manifest_version") if isinstance(record, dict) else None
    if found != MANIFEST_VERSION:
        raise DataError(
            f"{location}: must be a run manifest of version {MANIFEST_VERSION}, got version {found}. "
            "Run `dvc repro` to write it again."
        )
    try:
        return RunManifest(**record)
    except TypeError as error:
        raise DataError(f"{location}: no run manifest ({error}). Run `dvc repro` to write it again.") from error


def _installed() -> dict[str, str]:
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue  # of an extra that is not installed
    return versions


def _compiled_graphs() -> int:
    """Graphs that torch has compiled in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return 0 if dynamo is None else int(dynamo.counters["stats"]["unique_graphs"])


def _peak_memory_mib() -> float:
    status = Path("/proc/self/status")
    # On Linux ru_maxrss starts at the memory of the program that started this one. gVisor has no VmHWM.
    for line in status.read_text().splitlines() if status.exists() else ():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 2**10  # of KiB
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)  # bytes on macOS, KiB on Linux


def cpu_name() -> str:
    """CPU model of this machine."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    if sys.platform == "darwin":
        return output_of("sysctl", "-n", "machdep.cpu.brand_string") or platform.machine()
    return platform.processor() or platform.machine()


def _accelerator() -> str | None:
    torch = sys.modules.get("torch")  # a stage that did not import torch used no GPU
    if torch is None or not torch.cuda.is_available():
        return None
    return str(torch.cuda.get_device_name())


def code_commit() -> str | None:
    """Commit of the checkout whose code this process runs, or None outside one.

    A copy of the code has it beside itself, since the checkout may have another one by now.
    """
    noted = Path(__file__).resolve().parents[2] / COMMIT_OF_COPY
    return (
        noted.read_text(encoding="utf-8").strip() or None if noted.is_file() else output_of("git", "rev-parse", "HEAD")
    )


def output_of(*command: str) -> str | None:
    """Standard output of a program, or None if it is not installed or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
