"""transformers' CLIP model with image processor and tokenizer: embeddings of images and prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from transformers import CLIPImageProcessorPil, CLIPModel, CLIPTokenizer

from chunk_grpo.config.scorer_settings import Dtype
from chunk_grpo.errors import DataError
from chunk_grpo.scorers.base import FloatArray, Pictures
from chunk_grpo.scorers.pictures import of_each_picture
from chunk_grpo.scorers.running.checkpoints import read_config, readable
from chunk_grpo.scorers.running.configured import ConfiguredScorer, chosen_device
from chunk_grpo.weights import load_weights

MODEL_FILES = (
    "config.json",
    "model.safetensors|model.safetensors.index.json|pytorch_model.bin|pytorch_model.bin.index.json",
    "model.safetensors|model-*.safetensors|pytorch_model.bin|pytorch_model-*.bin",
)
"""Files of a CLIPModel, with weights in one file or in several with an index."""

TOKENIZER_FILES = ("tokenizer_config.json", "tokenizer.json|vocab.json", "tokenizer.json|merges.txt")
"""Files of the tokenizer."""

PROCESSOR_FILES = ("preprocessor_config.json", *TOKENIZER_FILES)
"""Files of the image processor and the tokenizer."""

Resize = Literal["processor", "squash"]

PIXEL_MEAN = (0.48145466, 0.4578275, 0.40821073)
PIXEL_STD = (0.26862954, 0.26130258, 0.27577711)
"""CLIP's mean and standard deviation of RGB values in [0, 1]."""

_FIRST_EOS = 2
"""The eos_token_id in configurations older than transformers 4.31, independent of the tokenizer. For this value
transformers pools the text at its highest token id (modeling_clip.py, pull request 24773)."""


@dataclass(frozen=True)
class ClipEncoder:
    """A CLIP model on its device."""

    model: CLIPModel
    """CLIP model in evaluation mode."""
    scale: float
    """exp(logit_scale), computed in float64 from the stored value: bfloat16 would give 98.9 for 100."""

    @property
    def image_size(self) -> int:
        """Height and width of the model's input images in pixels."""
        return int(self.model.config.vision_config.image_size)

    @property
    def max_tokens(self) -> int:
        """Maximum number of text tokens, including start and end; 77 in every published CLIP."""
        return int(self.model.config.text_config.max_position_embeddings)

    def embed_images(self, pixels: Tensor) -> FloatArray:
        """Embeddings of norm 1, float64 [B, D].

        Args:
            pixels: Images [B, 3, image_size, image_size], normalised by the model's processor.
        """
        with torch.inference_mode():
            pixels = pixels.to(self.model.device, self.model.dtype)
            return _embedding(self.model.get_image_features(pixel_values=pixels).pooler_output)

    def embed_texts(self, ids: Tensor, mask: Tensor) -> FloatArray:
        """Embeddings of norm 1, float64 [B, D].

        Args:
            ids: Token ids [B, T], with start and end.
            mask: Attention mask [B, T], 0 at padding.
        """
        device = self.model.device
        with torch.inference_mode():
            output = self.model.get_text_features(input_ids=ids.to(device), attention_mask=mask.to(device))
            return _embedding(output.pooler_output)

    def cosines(
        self, pixels: Tensor, prompts: Sequence[str], tokens: Callable[[Sequence[str]], tuple[Tensor, Tensor]]
    ) -> FloatArray:
        """Cosine of each image and its prompt, float64 [B]; each distinct prompt is encoded once.

        Args:
            pixels: Images, as `embed_images` takes them.
            prompts: B prompts.
            tokens: Function that gives token ids and mask of prompts.
        """
        distinct = list(dict.fromkeys(prompts))
        texts = self.embed_texts(*tokens(distinct))
        images = self.embed_images(pixels)
        cosine: FloatArray = (images * texts[[distinct.index(prompt) for prompt in prompts]]).sum(axis=-1)
        return cosine


def normalised(pixels: Tensor) -> Tensor:
    """RGB values in [0, 1], [B, 3, H, W], less CLIP's mean and divided by its standard deviation."""
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (PIXEL_MEAN, PIXEL_STD))
    return (pixels - mean) / std


def unit(vectors: FloatArray) -> FloatArray:
    """Vectors [..., D] normalised to norm 1."""
    length: FloatArray = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / length


def _embedding(features: Tensor) -> FloatArray:
    return unit(features.double().cpu().numpy())


def take_encoder(scorer: ConfiguredScorer[Any], field: str) -> ClipEncoder:
    """Encoder of a field of a scorer's settings. Scorers with the same weights, dtype and device share it."""
    dtype, device = scorer.settings.dtype, chosen_device(scorer.device)
    return scorer.take_model(
        ("clip", getattr(scorer.settings, field), dtype, device),
        lambda: load_encoder(scorer.where(field), scorer.folder(field), dtype, device),
    )


def load_encoder(key: str, folder: Path, dtype: Dtype, device: str) -> ClipEncoder:
    """Load a CLIPModel from MODEL_FILES; DataError if the model type differs or weights do not fit.

    `key` is the key of params.yaml, such as scorers.pickscore.model, for messages.
    """
    read_config(key, folder, "clip")
    model = load_weights(f"{key}: weights in {folder}", CLIPModel, folder, torch.float32)
    scale = float(model.logit_scale.double().exp())
    return ClipEncoder(model.to(device, getattr(torch, dtype)), scale)


@dataclass(frozen=True)
class ClipProcessor:
    """Converts images and prompts into an encoder's input."""

    pictures: CLIPImageProcessorPil
    """Image processor that resizes, crops and normalises."""
    tokenizer: CLIPTokenizer
    """Tokenizer that lower-cases; unlike open_clip's, it does not repair broken Unicode (ftfy)."""
    max_tokens: int
    """Maximum number of tokens of a prompt; longer prompts are truncated, keeping the end token."""

    def pixels(self, images: Pictures | Sequence[NDArray[np.uint8]]) -> Tensor:
        """Float32 [B, 3, size, size] from uint8 [B, H, W, 3], or from B images [H, W, 3] of different sizes."""
        made = of_each_picture(lambda image: self.pictures([image], return_tensors="pt")["pixel_values"], images)
        return torch.cat(made)

    def tokens(self, prompts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Token ids and mask, both [B, T]; T is the length of the longest prompt, at most `max_tokens`."""
        return tokenize(self.tokenizer, prompts, self.max_tokens)


def tokenize(tokenizer: CLIPTokenizer, prompts: Sequence[str], max_tokens: int) -> tuple[Tensor, Tensor]:
    """Token ids and mask, both [B, T]; T is the length of the longest prompt, at most `max_tokens`."""
    found = tokenizer(list(prompts), padding=True, truncation=True, max_length=max_tokens, return_tensors="pt")
    return found["input_ids"], found["attention_mask"]


def load_tokenizer(key: str, folder: Path, encoder: ClipEncoder) -> CLIPTokenizer:
    """Load the tokenizer of an encoder from TOKENIZER_FILES; DataError if a file is damaged or of another model."""
    with readable(f"{key}: {folder} holds no readable CLIP tokenizer"):
        tokenizer = CLIPTokenizer.from_pretrained(folder, local_files_only=True)
    # With an unknown end token the model would pool every text at its start.
    text = encoder.model.config.text_config
    end = len(tokenizer) - 1 if text.eos_token_id == _FIRST_EOS else text.eos_token_id
    if len(tokenizer) > text.vocab_size or tokenizer.eos_token_id != end:
        raise DataError(
            f"{key}: the tokenizer in {folder} has {len(tokenizer)} tokens and ends texts with number "
            f"{tokenizer.eos_token_id}; the model has {text.vocab_size} tokens and needs {end} at the end. Use the "
            "model's own tokenizer."
        )
    return tokenizer


def load_processor(key: str, folder: Path, encoder: ClipEncoder, resize: Resize = "processor") -> ClipProcessor:
    """Load image processor and tokenizer of an encoder from PROCESSOR_FILES; DataError as `load_tokenizer`.

    Images are resized as the files define, or with `squash` both sides bicubically to the encoder's size without
    cropping, as in mlfoundations/open_clip with resize mode squash (transform.py).
    """
    size = encoder.image_size
    squash: dict[str, Any] = {
        "size": {"height": size, "width": size},
        "do_resize": True,
        "do_center_crop": False,
        "resample": Image.Resampling.BICUBIC,
    }
    changes = squash if resize == "squash" else {}
    with readable(f"{key}: {folder} holds no readable CLIP image processor"):
        pictures = CLIPImageProcessorPil.from_pretrained(folder, local_files_only=True, **changes)
    tokenizer = load_tokenizer(key, folder, encoder)
    processor = ClipProcessor(pictures, tokenizer, encoder.max_tokens)
    shape = tuple(processor.pixels(np.zeros((1, 2 * size, 3 * size, 3), np.uint8)).shape[2:])
    if shape != (size, size):
        raise DataError(
            f"{key}: {folder / 'preprocessor_config.json'} makes images of {shape[0]}x{shape[1]} pixels, the "
            f"model takes {size}x{size}. Use the model's own processor, or set resize: squash."
        )
    return processor
