"""ImageReward: predicted human preference for an image given its prompt, by BLIP with a regression head.

Xu et al. 2023, arXiv:2304.05977. Preprocessing: package image-reward 1.5, ImageReward.py (_transform, score).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers import BertTokenizer

from chunk_grpo.config.scorers import ImageRewardScorer
from chunk_grpo.errors import DataError
from chunk_grpo.scorers.base import Pictures, ScoreBatch, Scores
from chunk_grpo.scorers.clip_model import normalised
from chunk_grpo.scorers.imagereward_model import MODEL_FILES, RewardModel, load_model
from chunk_grpo.scorers.pictures import of_each_picture
from chunk_grpo.scorers.running.checkpoints import readable
from chunk_grpo.scorers.running.configured import ConfiguredScorer, chosen_device

TOKENIZER_FILES = ("tokenizer_config.json", "tokenizer.json|vocab.txt")
"""Files of bert-base-uncased's tokenizer."""

MAX_TOKENS = 35
"""Length to which every prompt is truncated or padded, including start and end."""


def load_tokenizer(key: str, folder: Path, vocab_size: int) -> BertTokenizer:
    """Load bert-base-uncased's tokenizer and add BLIP's two tokens (blip.py, init_tokenizer).

    `vocab_size` is the model's, including the two. DataError if a file is damaged or of another model.
    """
    with readable(f"{key}: {folder} holds no readable BERT tokenizer"):
        tokenizer = BertTokenizer.from_pretrained(folder, local_files_only=True)
        tokenizer.add_special_tokens({"bos_token": "[DEC]"})
        tokenizer.add_special_tokens({"extra_special_tokens": ["[ENC]"]})
    if len(tokenizer) != vocab_size:
        raise DataError(
            f"{key}: the tokenizer in {folder} has {len(tokenizer)} tokens, with [DEC] and [ENC]; med_config.json says "
            f"{vocab_size}. ImageReward's is bert-base-uncased."
        )
    return tokenizer


def tokenize(tokenizer: BertTokenizer, prompts: Sequence[str]) -> Mapping[str, Tensor]:
    """`input_ids` and `attention_mask`, both [B, 35]."""
    found: Mapping[str, Tensor] = tokenizer(
        list(prompts), padding="max_length", truncation=True, max_length=MAX_TOKENS, return_tensors="pt"
    )
    return found


def to_pixels(images: Pictures, size: int) -> Tensor:
    """Resize the shorter side to `size` bicubically, crop the centre of the longer side, and normalise.

    Source: image-reward 1.5, ImageReward.py, _transform, with torchvision's Resize and CenterCrop. These truncate the
    longer side to a whole number, and round half-pixel margins to the even number.

    Args:
        images: uint8 [B, H, W, 3], RGB.
        size: Height and width of the result in pixels.

    Returns:
        Float32 [B, 3, size, size].
    """
    height, width = images.shape[1:3]
    short = min(height, width)
    tall, wide = (int(size * side / short) if side != short else size for side in (height, width))
    top, left = (round((side - size) / 2) for side in (tall, wide))
    box = (left, top, left + size, top + size)
    bicubic = Image.Resampling.BICUBIC
    resized = of_each_picture(lambda image: np.asarray(image.resize((wide, tall), bicubic).crop(box)), images)
    cut = np.stack(resized).transpose(0, 3, 1, 2)
    return normalised(torch.from_numpy(np.ascontiguousarray(cut)).float() / 255)


class ImageReward(ConfiguredScorer[ImageRewardScorer]):
    """ImageReward: standardised, unbounded; -2.03 to 0.58 for the four examples in the authors' README."""

    version = 1

    @property
    def files(self) -> Mapping[str, Sequence[str]]:
        """File patterns of model and tokenizer."""
        return {"model": MODEL_FILES, "tokenizer": TOKENIZER_FILES}

    def score_rows(self, batch: ScoreBatch) -> Scores:
        """Score the images of a batch."""
        model, tokenizer = self.models
        tokens = tokenize(tokenizer, batch.prompts)
        with torch.inference_mode():
            pixels = to_pixels(batch.images, model.image_size)
            inputs = (pixels, tokens["input_ids"], tokens["attention_mask"])
            rewards = model(*(part.to(chosen_device(self.device)) for part in inputs))
        return Scores(rewards.double().cpu().numpy())

    @cached_property
    def models(self) -> tuple[RewardModel, BertTokenizer]:
        """Network and tokenizer."""
        settings, device = self.settings, chosen_device(self.device)
        model = self.take_model(
            ("imagereward", settings.model, settings.dtype, device),
            lambda: load_model(self.where("model"), self.folder("model"), settings.dtype, device),
        )
        vocab_size = int(model.text.config.vocab_size)
        return model, load_tokenizer(self.where("tokenizer"), self.folder("tokenizer"), vocab_size)
