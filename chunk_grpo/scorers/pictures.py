"""Preprocesses images in threads: Pillow releases the GIL while resizing."""

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
"""Maximum number of threads per call; several processes of a host may score at the same time."""


def of_each_picture(make: Callable[[Image.Image], Made], images: Pictures | Sequence[NDArray[np.uint8]]) -> list[Made]:
    """Results of `make` for each image, in order.

    Args:
        make: Function of one image. It runs in threads; its result must not depend on other images.
        images: uint8 [B, H, W, 3], RGB, or B images [H, W, 3] of different sizes.
    """
    threads = max(1, min(MAX_THREADS, len(images), os.cpu_count() or 1))
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(make, map(Image.fromarray, images)))
