"""Scorers of a user's, by `source: tests.scorers.odd_scorers:NAME`; the first fails in a chosen way when told to.

What it is told stands in the metadata of a batch's first image as `do`.
"""

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chunk_grpo.config.scorers import ExternalScorer
from chunk_grpo.errors import ConfigError, DataError, RefusedError, TransientError
from chunk_grpo.scorers.base import Pictures, ScoreBatch

KEY = "odd"


class SpecialError(DataError):
    """Error class like one of a user's scorer."""


def settings(source: str = "odd", **options: Any) -> ExternalScorer:
    return ExternalScorer(
        kind="external",
        source=f"tests.scorers.odd_scorers:{source}",
        version=1,
        options=options,
        splits=("eval",),
        batch_size=64,
    )


def batch(do: str = "", count: int = 4, size: int = 4, **told: Any) -> ScoreBatch:
    """Images that score differently; the first tells what to do."""
    images = np.random.default_rng(count).integers(0, 256, (count, size, size, 3), dtype=np.uint8)
    prompts = [f"prompt {'x' * row}" for row in range(count)]
    metadata: list[Mapping[str, object]] = [{"number": row / 7, "do": do, **told} for row in range(count)]
    return ScoreBatch(images, prompts, metadata, [row // 2 for row in range(count)])


def odd(images: Pictures, prompts: Sequence[str], metadata: Sequence[Mapping[str, Any]]) -> Any:
    values = images.reshape(len(images), -1).mean(1) / 3 + [len(prompt) for prompt in prompts]
    values += [record["number"] for record in metadata]
    _fail(metadata[0]["do"], metadata[0])
    wrong: dict[str, Any] = {
        "short": values[:-1],
        "long": [*values, 1.0],
        "nan": np.where(np.arange(len(values)) == 1, np.nan, values),
        "reversed": values[::-1],
        "turned": np.roll(values, 1),
        "column": values[:, None],
        "refuse": [RefusedError(f"the reason ({row})") if row == 1 else value for row, value in enumerate(values)],
    }
    torch = np.full(len(values), float("torch" in sys.modules))
    return wrong.get(metadata[0]["do"], values), {"pixels": images[:, 0, 0, 0].astype(float), "torch": torch}


def _fail(do: str, told: Mapping[str, Any]) -> None:
    if do == "exit":
        os.write(2, b"one line\nsomething is broken\n")
        os._exit(7)
    if do == "slow":
        Path(told["begun"]).touch()
        time.sleep(told["seconds"])
    if do == "print":
        sys.stdout.write('{"type": "scores"}\n')
        os.write(1, b"written to the standard output\n")
        subprocess.run(["echo", "by a child"], check=True)
        input_end = sys.stdin.read(1)
        if input_end:
            raise RuntimeError("read from the protocol")
    errors: dict[str, type[Exception]] = {
        "special": SpecialError,
        "connection": ConnectionResetError,
        "data": DataError,
        "config": ConfigError,
        "transient": TransientError,
        "bug": ZeroDivisionError,
    }
    if do in errors:
        raise errors[do](f"the reason ({do})")
    if do == "sys.exit":
        sys.exit("enough")


def swayed(images: Pictures, prompts: Sequence[str], metadata: Sequence[Mapping[str, Any]]) -> Any:
    """Depends on the other images."""
    values = images.reshape(len(images), -1).mean(1)
    return values - values.mean()


class Restless:
    """Another answer each time."""

    def __init__(self) -> None:
        self.calls = 0

    def score(self, images: Pictures, prompts: Sequence[str], metadata: Sequence[Mapping[str, Any]]) -> Any:
        self.calls += 1
        return images.reshape(len(images), -1).mean(1) + self.calls


class Painter:
    """Writes into the images; a groupwise scorer gets those of the caller."""

    groupwise = True

    def score(
        self, images: Pictures, prompts: Sequence[str], metadata: Sequence[Mapping[str, Any]], groups: Sequence[int]
    ) -> Any:
        values = images.reshape(len(images), -1).mean(1)
        images[:] = 0
        return values


class Compared:
    """Rank within the group, as a groupwise scorer has it; `blind` ranks over the whole batch instead."""

    groupwise = True

    def __init__(self, blind: bool = False) -> None:
        self.blind = blind

    def score(
        self, images: Pictures, prompts: Sequence[str], metadata: Sequence[Mapping[str, Any]], groups: Sequence[int]
    ) -> Any:
        values = images.reshape(len(images), -1).mean(1)
        own = np.zeros(len(groups)) if self.blind else np.array(groups)
        return [float((values[own == group] < value).sum()) for value, group in zip(values, own, strict=True)]
