"""Preprocessing of several pictures at once: resizing in Pillow releases the interpreter's lock, so threads help."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from chunk_grpo.scorers.base import Pictures

Made = TypeVar("Made")

MAX_THREADS = 8
"""Of one scorer; several processes of a host may score at the same time."""


def of_each_picture(
    make: Callable[[Image.Image], Made], images: Pictures | Sequence[NDArray[np.uint8]]
) -> list[Made]:
    """What `make` makes of each picture, in their order.

    Args:
        make: Runs in threads; no picture's result may depend on another's.
        images: uint8 [B, H, W, 3], RGB, or B pictures [H, W, 3] of any size each.
    """
    threads = max(1, min(MAX_THREADS, len(images), os.cpu_count() or 1))
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(make, map(Image.fromarray, images)))
