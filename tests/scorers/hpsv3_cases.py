"""Images and prompts on which HPSv3 is compared, and what the original package makes of them."""

from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from chunk_grpo.config.scorers import HPSv3Scorer
from chunk_grpo.scorers.hpsv3 import HPSv3
from tests.scorers.samples import weights

PROMPTS = ["a photo of a red circle", "a cat", "", 'two squares, "blue" and 4 green, as in a child\'s drawing']

# mu and the second number by the package hpsv3 1.0.0 with transformers 4.45.2 and torch 2.13.0, in float32, on
# make_hpsv3(seed=0) and PROMPTS with pictures(4); test_hpsv3_original.py computes them again.
GOLDEN = np.array(
    [[0.538478732, -0.880343556], [-0.578525186, 0.167764306], [-0.015883803, 0.138507009], [-0.664959908, 0.060912728]]
)
CLOSE = {"rel": 1e-4, "abs": 1e-5}
"""Tolerance in float32: another order of sums changes the sixth decimal, in the package too."""

MORE = [
    (96, 40, "straße, naïve cafe\u0301, 東京 の 夜, 🦊"),
    (720, 720, '  two  spaces,\n\na line,\ttabs and {text_prompt} {} % \\ "quotes" \'ll 1234567890'),
    (1024, 1024, "<Reward> |im_end| < | image_pad | >"),
    (333, 517, "a very long prompt about a red circle in the style of the image, " * 60),
    (512, 256, "\u200bzero width, a\u0000null, non\u00a0breaking, \ufb01 ligature"),
    (31, 29, "end with space "),
]
"""Height, width and prompt; no special tokens of Qwen2-VL."""


def pictures(count: int, height: int = 64, width: int = 64, seed: int = 0) -> NDArray[np.uint8]:
    """Gradients of changing colour under noise: uint8 [count, height, width, 3]."""
    rng = np.random.default_rng(seed)
    rows, columns = np.linspace(0, 1, height)[:, None, None], np.linspace(0, 1, width)[None, :, None]
    start, down, across = rng.uniform(0, 255, (3, count, 1, 1, 3))
    smooth = (start + down * rows + across * columns) / 2
    noisy: NDArray[np.float64] = smooth + rng.uniform(0, 60, (count, height, width, 3))
    return noisy.clip(0, 255).astype(np.uint8)


def scorer(folder: Path, dtype: Literal["float32", "bfloat16"] = "float32", batch_size: int = 8) -> HPSv3:
    """A scorer of what make_hpsv3 wrote to a folder."""
    model, backbone = (weights(folder / name) for name in ("model", "backbone"))
    settings = HPSv3Scorer(
        kind="hpsv3", splits=("test",), batch_size=batch_size, model=model, backbone=backbone, dtype=dtype
    )
    return HPSv3("hpsv3", settings, "cpu")
