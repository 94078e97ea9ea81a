"""Shared helpers of scorer tests: weights in a folder, batches, changed files."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chunk_grpo.config.scorer_settings import Weights
from chunk_grpo.scorers.base import Pictures, ScoreBatch

PROMPTS = [
    "a photo of a red cat",
    "An Astronaut riding a HORSE on the moon, 4k; (detailed:1.3) --ar 16:9",
    "naïve café, 東京の夜, emoji 🙂",
    "it's  two\ttabs, the dog's 37 toys",
    "a very long prompt of many words " * 20,
    "x",
]
"""Capitals, letters of other scripts, white space, apostrophes, and more tokens than a text encoder takes."""


def weights(folder: Path) -> Weights:
    return Weights(checkpoint=str(folder), revision=None)


def batch_of(images: Pictures, prompts: Sequence[str]) -> ScoreBatch:
    """Images that nothing is known of but their prompts."""
    return ScoreBatch(images, list(prompts), [{}] * len(prompts), [0] * len(prompts))


def noise(prompts: Sequence[str], height: int, width: int, seed: int) -> ScoreBatch:
    """A picture of noise for each prompt."""
    rng = np.random.default_rng(seed)
    return batch_of(rng.integers(0, 256, (len(prompts), height, width, 3), dtype=np.uint8), prompts)


def reconfigure(folder: Path, name: str, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a JSON file of a folder."""
    content = json.loads((folder / name).read_text())
    change(content)
    (folder / name).write_text(json.dumps(content))
