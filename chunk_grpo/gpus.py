"""GPUs of this machine: the driver's list, and whether torch sees them."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass

from chunk_grpo.errors import ConfigError

HIDING = ("", "-1", "NoDevFiles")
"""Values of CUDA_VISIBLE_DEVICES that hide all GPUs; the last one is SLURM's."""


@dataclass(frozen=True)
class DriverCard:
    """A GPU, as the driver describes it."""

    name: str
    gib: float | None
    """Memory; None: it shares the machine's."""
    driver: str
    """Version of the driver."""


def driver_cards() -> list[DriverCard]:
    """All GPUs that `nvidia-smi` lists, hidden ones too; none without the program."""
    command = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [line.split(", ") for line in done.stdout.splitlines() if line.count(", ") == 2]
    return [DriverCard(name, int(mib) / 1024 if mib.isdecimal() else None, driver) for name, mib, driver in rows]


def visible_gpus() -> list[str]:
    """GPUs that CUDA_VISIBLE_DEVICES names; all that the driver lists if it is not set."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return [str(number) for number in range(len(driver_cards()))]
    return [] if listed in HIDING else [device.strip() for device in listed.split(",") if device.strip()]


def has_gpu() -> bool:
    """Whether torch sees a GPU.

    Raises:
        ConfigError: The driver lists one that torch does not see, and CUDA_VISIBLE_DEVICES does not hide it. A training
            would take the CPU, and weeks.
    """
    if os.environ.get("CUDA_VISIBLE_DEVICES") in HIDING:
        return False
    import torch  # here: takes seconds

    if torch.cuda.is_available():
        return True
    if not (cards := driver_cards()):
        return False
    if torch.version.cuda is None:
        cause = f"torch {torch.__version__} is a build without CUDA; install one with CUDA"
    else:
        cause = (
            f"torch {torch.__version__} is built with CUDA {torch.version.cuda}, which may need a newer driver than "
            "this one; update the driver or install a build with an older CUDA"
        )
    raise ConfigError(
        f"the driver lists {cards[0].name!r}, which torch does not see: {cause} (docs/deploy.md, "
        '"Drivers"), or set CUDA_VISIBLE_DEVICES= to use the CPU'
    )
