"""Client of the unmodified package hpsv3, which runs in its own interpreter."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from chunk_grpo.errors import DataError
from chunk_grpo.scorers import workers
from chunk_grpo.scorers.base import FloatArray

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = Path(__file__).with_name("hpsv3_alone.py")
WORKERS = Path(*workers.__path__)
"""Folder of the module that builds the package's scorer from a section of params.yaml."""

WITH_TORCHVISION = ROOT / "tests" / "scorers" / "originals" / "with_torchvision.py"
"""Script that makes PyPI's torchvision importable with a CPU build of torch; otherwise it changes nothing."""


@dataclass(frozen=True)
class Scored:
    """Scores of the package.

    Attributes:
        values: Mean score of each image.
        seconds: Total seconds of all calls (one per image), without loading and communication between processes.
    """

    values: FloatArray
    seconds: float


class HPSv3Package:
    """A running process of the package, with its images."""

    def __init__(self, process: subprocess.Popen[str], errors: Path) -> None:
        """Wait until the process has loaded the model.

        Raises:
            DataError: The process ended; with the last lines of its standard error.
        """
        self._process, self._errors = process, errors
        self._line()

    def score(self) -> Scored:
        """Score all images, one at a time."""
        if self._process.stdin is None:
            raise ValueError("the process was started without a standard input")
        with suppress(BrokenPipeError):  # the process ended: `_line` raises the error
            self._process.stdin.write("again\n")
            self._process.stdin.flush()
        found = json.loads(self._line())
        return Scored(np.array(found["values"]), sum(found["seconds"]))

    def _line(self) -> str:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            said = self._errors.read_text(encoding="utf-8", errors="replace").splitlines()
            raise DataError("the package hpsv3 ended:\n" + "\n".join(said[-8:]))
        return line


@contextmanager
def hpsv3_package(
    python: Path,
    model: Path,
    backbone: Path,
    images: Sequence[Path],
    prompts: Sequence[str],
    *,
    dtype: str,
    device: str,
) -> Iterator[HPSv3Package]:
    """Start the package's process; end it with the context.

    Args:
        python: Interpreter with hpsv3 1.0.0.
        model: Folder with HPSv3.safetensors.
        backbone: Folder with the files of Qwen2-VL-7B-Instruct; its weights are not needed.
        images: Image files.
        prompts: Prompt of each image.
        dtype: Data type of the backbone: float32, or bfloat16, which the package supports only on GPUs.
        device: Device, for example cpu or cuda:0.

    Raises:
        DataError: The interpreter does not exist, or the process ended.
    """
    if not python.is_file():
        raise DataError(f"there is no interpreter {python}")
    job = {
        "settings": {
            "model": {"checkpoint": str(model.resolve())},
            "backbone": {"checkpoint": str(backbone.resolve())},
            "dtype": dtype,
        },
        "device": device,
        "images": [str(image.resolve()) for image in images],
        "prompts": list(prompts),
    }
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        with (folder / "errors.txt").open("wb") as errors:
            process = subprocess.Popen(
                [python.absolute(), WITH_TORCHVISION, SCRIPT, folder / "job.json"],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(WORKERS)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                encoding="utf-8",
            )
            try:
                yield HPSv3Package(process, folder / "errors.txt")
            finally:
                process.kill()
                with suppress(BrokenPipeError):
                    process.communicate()
                process.wait()
