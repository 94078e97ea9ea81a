"""HPSv2.1: predicted human preference for an image given its prompt, by a CLIP ViT-H/14 tuned on preferences.

Wu et al. 2023, arXiv:2306.09341. Preprocessing and score: package hpsv2 1.2.0, img_score.py and src/open_clip
(transform.py, ResizeMaxSize), with torchvision's antialiased resizing of tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate, pad
from transformers import CLIPTokenizer

from chunk_grpo.config.scorers import HPSv2Scorer
from chunk_grpo.scorers.base import Pictures, ScoreBatch, Scores
from chunk_grpo.scorers.clip_model import TOKENIZER_FILES, ClipEncoder, load_tokenizer, normalised, tokenize
from chunk_grpo.scorers.hpsv2_model import MODEL_FILES, load_model
from chunk_grpo.scorers.running.configured import ConfiguredScorer, chosen_device

_FACTORS = {"cosine": 1.0, "cosine*100": 100.0}


def to_pixels(images: Pictures, size: int) -> Tensor:
    """Resize the longer side to `size` bicubically, pad the shorter side with black on both sides, and normalise.

    Images are resized as floats, without rounding and without clipping to [0, 1]. The package does not pad an image
    whose longer side has the size already, and then fails if it is not square; here it is padded like others.

    Args:
        images: uint8 [B, H, W, 3], RGB.
        size: Height and width of the result in pixels.

    Returns:
        Float32 [B, 3, size, size].
    """
    height, width = images.shape[1:3]
    scale = size / max(height, width)
    tall, wide = round(height * scale), round(width * scale)
    pixels = torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2))).float() / 255
    if scale != 1:
        pixels = interpolate(pixels, (tall, wide), mode="bicubic", align_corners=False, antialias=True)
    left, top = (size - wide) // 2, (size - tall) // 2
    return normalised(pad(pixels, (left, size - wide - left, top, size - tall - top)))


class HPSv2(ConfiguredScorer[HPSv2Scorer]):
    """HPSv2.1: cosine of image and prompt, about 0.25 to 0.34; as published, times 100."""

    version = 1

    @property
    def name(self) -> str:
        """Measure with its release: scores of 2.0 and 2.1 cannot be compared."""
        return "hpsv2.1"

    @property
    def files(self) -> Mapping[str, Sequence[str]]:
        """File patterns of model and tokenizer."""
        return {"model": MODEL_FILES, "tokenizer": TOKENIZER_FILES}

    def score_rows(self, batch: ScoreBatch) -> Scores:
        """Score the images of a batch."""
        encoder, tokenizer = self.models
        cosine = encoder.cosines(
            to_pixels(batch.images, encoder.image_size),
            batch.prompts,
            lambda prompts: tokenize(tokenizer, prompts, encoder.max_tokens),
        )
        return Scores(cosine * _FACTORS[self.settings.scale])

    @cached_property
    def models(self) -> tuple[ClipEncoder, CLIPTokenizer]:
        """Encoder and tokenizer."""
        settings, device = self.settings, chosen_device(self.device)
        encoder = self.take_model(
            ("hpsv2", settings.model, settings.dtype, device),
            lambda: load_model(self.where("model"), self.folder("model"), settings.dtype, device),
        )
        return encoder, load_tokenizer(self.where("tokenizer"), self.folder("tokenizer"), encoder)
