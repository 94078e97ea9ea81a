"""Damaged picture files of each format: a picture or a sentence, never another error."""

import io
import random

import numpy as np
import pytest
from PIL import Image

from chunk_grpo.errors import DataError
from chunk_grpo.image_files import FORMATS, decode_image

CASES = 60


def damaged(content: bytes, draw: random.Random) -> bytes:
    """The file with some bytes changed, cut off, or doubled."""
    data = bytearray(content)
    kind = draw.choice(("bytes", "head", "cut", "double"))
    if kind == "cut":
        return bytes(data[: draw.randrange(len(data))])
    if kind == "double":
        at = draw.randrange(len(data))
        return bytes(data[:at] + data[max(0, at - 40) :])
    for _ in range(draw.randint(1, 8)):
        data[draw.randrange(min(64, len(data)) if kind == "head" else len(data))] = draw.randrange(256)
    return bytes(data)


@pytest.mark.filterwarnings("ignore")  # Pillow's, of damaged metadata
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_damaged_files(kind: str, mode: str) -> None:
    draw = random.Random(f"{kind} {mode}")
    pixels = np.random.default_rng(0).integers(0, 256, (24, 24, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(out, kind)
    read = 0
    for _ in range(CASES):
        try:
            found = decode_image(damaged(out.getvalue(), draw), "it")
        except DataError as error:
            assert str(error).startswith("image it: ")
        else:
            assert found.dtype == np.uint8 and found.ndim == 3 and found.shape[2] == 3
            read += 1
    assert read < CASES
