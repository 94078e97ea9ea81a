"""GPUs of this machine: the driver's list, and whether torch sees them."""

from __future__ import annotations

import os
import subprocess

from chunk_grpo.errors import ConfigError

HIDING = ("", "-1", "NoDevFiles")
"""Values of CUDA_VISIBLE_DEVICES that hide all GPUs; the last one is SLURM's."""


def driver_gpus() -> list[str]:
    """Lines of `nvidia-smi -L`, one for each GPU; none without the program or if it fails."""
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line for line in done.stdout.splitlines() if line.startswith("GPU ")]


def has_gpu() -> bool:
    """Whether torch sees a GPU.

    Raises:
        ConfigError: The driver lists one that torch does not see, and CUDA_VISIBLE_DEVICES does not hide it. A training
            would take the CPU, and weeks.
    """
    import torch  # takes seconds

    if torch.cuda.is_available():
        return True
    if os.environ.get("CUDA_VISIBLE_DEVICES") in HIDING or not (listed := driver_gpus()):
        return False
    if torch.version.cuda is None:
        cause = f"torch {torch.__version__} is a build without CUDA; install one with CUDA"
    else:
        cause = (
            f"torch {torch.__version__} is built with CUDA {torch.version.cuda}, which may need a newer driver than "
            "this one; update the driver or install a build with an older CUDA"
        )
    raise ConfigError(
        f"the driver lists {listed[0].partition(' (UUID')[0]!r}, which torch does not see: {cause} (docs/deploy.md, "
        '"Drivers"), or set CUDA_VISIBLE_DEVICES= to use the CPU'
    )
