"""HPSv2.1: predicted human preference for an image given its prompt, by a CLIP ViT-H/14 tuned on preferences.

Wu et al. 2023, arXiv:2306.09341. Preprocessing and score: package hpsv2 1.2.0, img_score.py and src/open_clip
(transform.py, ResizeMaxSize), with torchvision's antialiased resizing of tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate, pad
from transformers import CLIPTokenizer

from chunk_grpo.config.scorers import HPSv2Scorer
from chunk_grpo.scorers.base import FloatArray, Pictures, ScoreBatch, Scores
from chunk_grpo.scorers.clip_model import TOKENIZER_FILES, ClipEncoder, load_tokenizer, tokenize
from chunk_grpo.scorers.hpsv2_model import MODEL_FILES, load_model
from chunk_grpo.scorers.imagereward import PIXEL_MEAN, PIXEL_STD
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
    padded = pad(pixels, (left, size - wide - left, top, size - tall - top))
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (PIXEL_MEAN, PIXEL_STD))
    return (padded - mean) / std


class HPSv2(ConfiguredScorer[HPSv2Scorer]):
    """HPSv2.1: cosine of image and prompt, about 0.25 to 0.34; as published, times 100."""

    version = 1
    _models: tuple[ClipEncoder, CLIPTokenizer] | None = None

    @property
    def name(self) -> str:
        """Measure with its release: scores of 2.0 and 2.1 cannot be compared."""
        return "hpsv2.1"

    @property
    def files(self) -> Mapping[str, Sequence[str]]:
        """File patterns of model and tokenizer."""
        return {"model": MODEL_FILES, "tokenizer": TOKENIZER_FILES}

    def score_rows(self, batch: ScoreBatch) -> Scores:
        """Score the images of a batch; each distinct prompt is encoded once.

        Raises:
            DataError: The model cannot be loaded.
        """
        if not len(batch):
            return Scores(np.zeros(0))
        encoder, tokenizer = self._load()
        prompts = list(dict.fromkeys(batch.prompts))
        texts = encoder.embed_texts(*tokenize(tokenizer, prompts, encoder.max_tokens))
        images = encoder.embed_images(to_pixels(batch.images, encoder.image_size))
        of_row = [prompts.index(prompt) for prompt in batch.prompts]
        cosine: FloatArray = (images * texts[of_row]).sum(axis=-1)
        return Scores(cosine * _FACTORS[self.settings.scale])

    def close(self) -> None:
        """Release the model."""
        self._models = None
        super().close()

    def _load(self) -> tuple[ClipEncoder, CLIPTokenizer]:
        if self._models is None:
            settings, key, device = self.settings, f"scorers.{self.key}", chosen_device(self.device)
            encoder = self.take_model(
                ("hpsv2", settings.model, settings.dtype, device),
                lambda: load_model(f"{key}.model", settings.model, settings.dtype, device),
            )
            self._models = encoder, load_tokenizer(f"{key}.tokenizer", settings.tokenizer, encoder)
        return self._models
