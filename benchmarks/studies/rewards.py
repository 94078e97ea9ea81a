"""Rewards of the studies, as a user writes them (docs/own_scorers.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def texture(images: NDArray[np.uint8], prompts: Sequence[str], metadata: Sequence[Any]) -> NDArray[np.float64]:
    """Mean distance of a pixel from the mean of its four neighbours: uint8 [B, H, W, 3] to [B], 0 to 1.

    Detail, which the last denoising steps are thought to decide: shapes and colours are there before it.
    """
    inner = images.astype(np.float64) / 255
    around = inner[:, :-2, 1:-1] + inner[:, 2:, 1:-1] + inner[:, 1:-1, :-2] + inner[:, 1:-1, 2:]
    distance: NDArray[np.float64] = np.abs(inner[:, 1:-1, 1:-1] - around / 4).mean(axis=(1, 2, 3))
    return distance
