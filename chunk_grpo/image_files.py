"""Pictures to PNG and back, and image grids."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from chunk_grpo.errors import DataError


def encode_png(picture: NDArray[np.uint8]) -> bytes:
    """Encode a picture [H, W, 3] as PNG."""
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, format="PNG")
    return buffer.getvalue()


def decode_image(content: bytes, name: str) -> NDArray[np.uint8]:
    """Decode an image file to RGB [H, W, 3].

    Args:
        content: Bytes of the file.
        name: Name of the image, for the error message.

    Raises:
        DataError: The bytes are not a complete image.
    """
    try:
        return np.array(Image.open(io.BytesIO(content)).convert("RGB"))
    except (OSError, SyntaxError, ValueError) as error:  # Pillow raises these for damaged files
        raise DataError(
            f"image {name}: not a readable picture ({error}). Replace it; `dvc repro` generates images of the pipeline "
            "again."
        ) from error


def as_pictures(images: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Convert images [B, 3, H, W] in [0, 1] to 8-bit pictures [B, H, W, 3]."""
    pictures: NDArray[np.uint8] = (images.transpose(0, 2, 3, 1) * 255).round().astype(np.uint8)
    return pictures


def image_grid(pictures: Sequence[NDArray[np.uint8]], columns: int, gap: int = 2) -> NDArray[np.uint8]:
    """Arrange pictures of one size in a grid on white.

    Args:
        pictures: Pictures [H, W, 3], at least 1.
        columns: Pictures per row.
        gap: Width of the white border and gaps, in pixels.
    """
    height, width = pictures[0].shape[:2]
    rows = -(-len(pictures) // columns)
    grid = np.full((rows * (height + gap) + gap, columns * (width + gap) + gap, 3), 255, dtype=np.uint8)
    for index, picture in enumerate(pictures):
        top, left = (
            gap + (size + gap) * at for size, at in zip((height, width), divmod(index, columns), strict=True)
        )
        grid[top : top + height, left : left + width] = picture
    return grid
