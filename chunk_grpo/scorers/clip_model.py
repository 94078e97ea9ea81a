"""A CLIP model of transformers with its image processor and tokenizer: embeddings of pictures and of prompts."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from transformers import CLIPImageProcessorPil, CLIPModel, CLIPTokenizer

from chunk_grpo.config.scorers import Dtype, Weights
from chunk_grpo.errors import DataError
from chunk_grpo.scorers.base import FloatArray, Pictures
from chunk_grpo.scorers.checkpoints import find_checkpoint
from chunk_grpo.scorers.configured import chosen_device
from chunk_grpo.scorers.pictures import of_each_picture
from chunk_grpo.scorers.strict_loading import load_strict, read_config

MODEL_FILES = (
    "config.json",
    "model.safetensors|model.safetensors.index.json|pytorch_model.bin|pytorch_model.bin.index.json",
    "model.safetensors|model-*.safetensors|pytorch_model.bin|pytorch_model-*.bin",
)
"""Of a CLIPModel, in one file or in several with an index."""

PROCESSOR_FILES = (
    "preprocessor_config.json",
    "tokenizer_config.json",
    "tokenizer.json|vocab.json",
    "tokenizer.json|merges.txt",
)
"""Of its image processor and its tokenizer."""

Resize = Literal["processor", "squash"]

_FIRST_EOS = 2
"""The eos_token_id in configurations older than transformers 4.31, whatever the tokenizer's is: transformers then reads
the text at its highest token (modeling_clip.py, pull request 24773)."""


@dataclass(frozen=True)
class ClipEncoder:
    """A CLIP model on its device.

    Attributes:
        model: In evaluation mode.
        scale: exp(logit_scale), in float64 from the file's number: bfloat16 would make 98.9 of 100.
    """

    model: CLIPModel
    scale: float

    @property
    def image_size(self) -> int:
        """Height and width of the pictures it takes, in pixels."""
        return int(self.model.config.vision_config.image_size)

    @property
    def max_tokens(self) -> int:
        """The longest text it takes, with start and end; 77 in every published CLIP."""
        return int(self.model.config.text_config.max_position_embeddings)

    def embed_images(self, pixels: Tensor) -> FloatArray:
        """Embeddings of norm 1, float64 [B, D].

        Args:
            pixels: [B, 3, image_size, image_size], normalised by the model's processor.
        """
        with torch.inference_mode():
            pixels = pixels.to(self.model.device, self.model.dtype)
            return _embedding(self.model.get_image_features(pixel_values=pixels).pooler_output)

    def embed_texts(self, ids: Tensor, mask: Tensor) -> FloatArray:
        """Embeddings of norm 1, float64 [B, D].

        Args:
            ids: [B, N] tokens, with start and end.
            mask: [B, N], 0 at padding.
        """
        device = self.model.device
        with torch.inference_mode():
            output = self.model.get_text_features(input_ids=ids.to(device), attention_mask=mask.to(device))
            return _embedding(output.pooler_output)


def unit(vectors: FloatArray) -> FloatArray:
    """Vectors [..., D] brought to norm 1."""
    length: FloatArray = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / length


def _embedding(features: Tensor) -> FloatArray:
    return unit(features.double().cpu().numpy())


def encoder_key(weights: Weights, dtype: Dtype, device: str | None) -> Hashable:
    """What scorers that can share an encoder have in common, for `take_model`."""
    return ("clip", weights, dtype, chosen_device(device))


def load_encoder(key: str, weights: Weights, dtype: Dtype, device: str | None) -> ClipEncoder:
    """Load a CLIPModel.

    Args:
        key: Of params.yaml, such as scorers.pickscore.model, for messages.
        weights: Folder or hub id.
        dtype: Of the weights.
        device: Such as cuda:1; None: the first GPU, else the CPU.

    Raises:
        DataError: A file is missing, is of another kind of model, or its weights do not fit: names them.
    """
    folder = find_checkpoint(key, weights, MODEL_FILES)
    read_config(key, folder, "clip")
    model = load_strict(key, CLIPModel, folder, torch.float32)
    scale = float(model.logit_scale.double().exp())
    return ClipEncoder(model.to(chosen_device(device), getattr(torch, dtype)), scale)


@dataclass(frozen=True)
class ClipProcessor:
    """What turns pictures and prompts into an encoder's input.

    Attributes:
        pictures: Resizes, crops and normalises.
        tokenizer: Lower-cases and splits; no repair of broken Unicode (ftfy), unlike open_clip's.
        max_tokens: Of a prompt; the rest is cut off, the end token kept.
    """

    pictures: CLIPImageProcessorPil
    tokenizer: CLIPTokenizer
    max_tokens: int

    def pixels(self, images: Pictures | Sequence[NDArray[np.uint8]]) -> Tensor:
        """Float32 [B, 3, size, size] of uint8 [B, H, W, 3], or of B pictures [H, W, 3] of any size each."""
        made = of_each_picture(
            lambda image: self.pictures([image], return_tensors="pt")["pixel_values"], images
        )
        return torch.cat(made)

    def tokens(self, prompts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Tokens and mask, both [B, N]; N is the longest prompt's number, at most `max_tokens`."""
        found = self.tokenizer(
            list(prompts), padding=True, truncation=True, max_length=self.max_tokens, return_tensors="pt"
        )
        return found["input_ids"], found["attention_mask"]


def load_processor(key: str, weights: Weights, encoder: ClipEncoder, resize: Resize) -> ClipProcessor:
    """Load an image processor and a tokenizer for an encoder.

    Args:
        key: Of params.yaml, such as scorers.pickscore.processor, for messages.
        weights: Folder or hub id.
        encoder: What it feeds.
        resize: `processor`: as its files say; `squash`: both sides to the encoder's size by bicubic interpolation and
            nothing cropped, as mlfoundations/open_clip does where open_clip_config.json says so (transform.py).

    Raises:
        DataError: A file is missing or damaged, or it belongs to another model.
    """
    folder = find_checkpoint(key, weights, PROCESSOR_FILES)
    size = encoder.image_size
    squash: dict[str, Any] = {
        "size": {"height": size, "width": size},
        "do_resize": True,
        "do_center_crop": False,
        "resample": Image.Resampling.BICUBIC,
    }
    changes = squash if resize == "squash" else {}
    try:
        pictures = CLIPImageProcessorPil.from_pretrained(folder, local_files_only=True, **changes)
        tokenizer = CLIPTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # tokenizers and transformers raise anything for damaged files
        raise DataError(
            f"{key}: {folder} holds no CLIP tokenizer and image processor that can be read "
            f"({type(error).__name__}: {error}). Fetch the files again."
        ) from error
    processor = ClipProcessor(pictures, tokenizer, encoder.max_tokens)
    shape = tuple(processor.pixels(np.zeros((1, 2 * size, 3 * size, 3), np.uint8)).shape[2:])
    if shape != (size, size):
        raise DataError(
            f"{key}: {folder / 'preprocessor_config.json'} makes pictures of {shape[0]}x{shape[1]} pixels, the "
            f"model takes {size}x{size}. Take the processor that belongs to the model, or resize: squash."
        )
    _check_tokens(key, folder, tokenizer, encoder)
    return processor


def _check_tokens(key: str, folder: Path, tokenizer: CLIPTokenizer, encoder: ClipEncoder) -> None:
    """Refuse a tokenizer of another model: an unknown end token would have every text read at its start."""
    text = encoder.model.config.text_config
    end = len(tokenizer) - 1 if text.eos_token_id == _FIRST_EOS else text.eos_token_id
    if len(tokenizer) > text.vocab_size or tokenizer.eos_token_id != end:
        raise DataError(
            f"{key}: the tokenizer in {folder} has {len(tokenizer)} tokens and ends texts with number "
            f"{tokenizer.eos_token_id}; the model knows {text.vocab_size} tokens and needs {end} at the end. Take the "
            "tokenizer that belongs to the model."
        )
