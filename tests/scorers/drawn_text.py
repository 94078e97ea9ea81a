"""Pictures of words, in Pillow's own font."""

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from chunk_grpo.scorers.base import Pictures

SIDE = 256


def drawn(text: str) -> Pictures:
    """uint8 [1, SIDE, SIDE, 3] with the text in the middle."""
    picture = Image.new("RGB", (SIDE, SIDE), "white")
    place, font = (SIDE / 2, SIDE / 2), ImageFont.load_default(32)
    ImageDraw.Draw(picture).multiline_text(place, text, fill="black", font=font, anchor="mm", align="center")
    return np.asarray(picture)[None]


def all_drawn(texts: Sequence[str]) -> Pictures:
    """uint8 [B, SIDE, SIDE, 3], a picture for each text."""
    return np.concatenate([drawn(text) for text in texts])
