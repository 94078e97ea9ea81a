"""The untouched package hpsv3 in its own interpreter, as the benchmarks ask it."""

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
"""Has the module that makes the package's scorer of a section of params.yaml."""

WITH_TORCHVISION = ROOT / "tests" / "scorers" / "originals" / "with_torchvision.py"
"""Lets PyPI's torchvision be imported beside a torch for the CPU; elsewhere it changes nothing."""


@dataclass(frozen=True)
class Scored:
    """What the package made of the images.

    Attributes:
        values: Means, one an image.
        seconds: Of all calls, one an image; loading and the way between the processes left out.
    """

    values: FloatArray
    seconds: float


class HPSv3Package:
    """A running process of the package, with its images."""

    def __init__(self, process: subprocess.Popen[str], errors: Path) -> None:
        """Wait until it has loaded.

        Raises:
            DataError: It ended; with the last lines of its standard error.
        """
        self._process, self._errors = process, errors
        self._line()

    def score(self) -> Scored:
        """All images, one at a time."""
        if self._process.stdin is None:
            raise ValueError("the process was started without a standard input")
        with suppress(BrokenPipeError):  # it ended: there is no answer either
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
    """Start the package, and end it in the end.

    Args:
        python: Interpreter that has hpsv3 1.0.0.
        model: Folder with HPSv3.safetensors.
        backbone: Folder with Qwen2-VL-7B-Instruct's files; its weights are not needed.
        images: Files.
        prompts: One an image.
        dtype: Of the backbone: float32 or bfloat16, which the package cannot on a CPU.
        device: Such as cpu or cuda:0.

    Raises:
        DataError: There is no such interpreter, or the package ended.
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
