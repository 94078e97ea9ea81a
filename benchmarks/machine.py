"""Description of the machine of a benchmark; needs no package except torch."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import torch


def machine() -> dict[str, str | int]:
    """Hardware, software versions and commit of a measurement."""
    return {
        "cpu": _cpu_name(),
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "commit": _commit(),
    }


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _commit() -> str:
    """Commit hash, with a mark if there are uncommitted changes; "unknown" outside a repository."""
    root = Path(__file__).parent
    told = [
        subprocess.run(
            ["git", *command], cwd=root, capture_output=True, text=True, check=False
        ).stdout.strip()
        for command in (("rev-parse", "--short=10", "HEAD"), ("status", "--porcelain"))
    ]
    return (told[0] + (" with changes" if told[1] else "")) or "unknown"
