"""transformers' CLIP model with image processor and tokenizer: embeddings of images and prompts."""

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

from chunk_grpo.config.scorer_settings import Dtype, Weights
from chunk_grpo.errors import DataError
from chunk_grpo.scorers.base import FloatArray, Pictures
from chunk_grpo.scorers.pictures import of_each_picture
from chunk_grpo.scorers.running.checkpoints import find_checkpoint, read_config
from chunk_grpo.scorers.running.configured import chosen_device
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


def unit(vectors: FloatArray) -> FloatArray:
    """Vectors [..., D] normalised to norm 1."""
    length: FloatArray = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / length


def _embedding(features: Tensor) -> FloatArray:
    return unit(features.double().cpu().numpy())


def encoder_key(weights: Weights, dtype: Dtype, device: str | None) -> Hashable:
    """Identity of an encoder for `take_model`: scorers with equal keys share it."""
    return ("clip", weights, dtype, chosen_device(device))


def load_encoder(key: str, weights: Weights, dtype: Dtype, device: str | None) -> ClipEncoder:
    """Load a CLIPModel.

    Args:
        key: Key of params.yaml, such as scorers.pickscore.model, for messages.
        weights: Folder or hub id.
        dtype: Dtype of the weights.
        device: Device such as cuda:1; None: the first GPU, else the CPU.

    Raises:
        DataError: A file is missing, the model type differs, or weights do not fit; the message names them.
    """
    folder = find_checkpoint(key, weights, MODEL_FILES)
    read_config(key, folder, "clip")
    model = load_weights(f"{key}: weights in {folder}", CLIPModel, folder, torch.float32)
    scale = float(model.logit_scale.double().exp())
    return ClipEncoder(model.to(chosen_device(device), getattr(torch, dtype)), scale)


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
        made = of_each_picture(
            lambda image: self.pictures([image], return_tensors="pt")["pixel_values"], images
        )
        return torch.cat(made)

    def tokens(self, prompts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Token ids and mask, both [B, T]; T is the length of the longest prompt, at most `max_tokens`."""
        return tokenize(self.tokenizer, prompts, self.max_tokens)


def tokenize(tokenizer: CLIPTokenizer, prompts: Sequence[str], max_tokens: int) -> tuple[Tensor, Tensor]:
    """Token ids and mask, both [B, T]; T is the length of the longest prompt, at most `max_tokens`."""
    found = tokenizer(
        list(prompts), padding=True, truncation=True, max_length=max_tokens, return_tensors="pt"
    )
    return found["input_ids"], found["attention_mask"]


def load_tokenizer(key: str, weights: Weights, encoder: ClipEncoder) -> CLIPTokenizer:
    """Load a CLIP tokenizer alone, for an encoder whose images are prepared without an image processor.

    Args:
        key: Key of params.yaml, such as scorers.hpsv2.tokenizer, for messages.
        weights: Folder or hub id.
        encoder: Encoder that takes the tokens.

    Raises:
        DataError: A file is missing or damaged, or belongs to another model.
    """
    folder = find_checkpoint(key, weights, TOKENIZER_FILES)
    try:
        tokenizer = CLIPTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # tokenizers and transformers raise any type of error for damaged files
        raise DataError(
            f"{key}: {folder} holds no readable CLIP tokenizer ({type(error).__name__}: {error}). Fetch the files "
            "again."
        ) from error
    _check_tokens(key, folder, tokenizer, encoder)
    return tokenizer


def load_processor(key: str, weights: Weights, encoder: ClipEncoder, resize: Resize) -> ClipProcessor:
    """Load an image processor and a tokenizer for an encoder.

    Args:
        key: Key of params.yaml, such as scorers.pickscore.processor, for messages.
        weights: Folder or hub id.
        encoder: Encoder that takes the output.
        resize: Resizing method. `processor`: as its files define; `squash`: both sides bicubically to the encoder's
            size without cropping, as in mlfoundations/open_clip with resize mode squash (transform.py).

    Raises:
        DataError: A file is missing or damaged, or belongs to another model.
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
    except Exception as error:  # tokenizers and transformers raise any type of error for damaged files
        raise DataError(
            f"{key}: {folder} holds no readable CLIP tokenizer and image processor "
            f"({type(error).__name__}: {error}). Fetch the files again."
        ) from error
    processor = ClipProcessor(pictures, tokenizer, encoder.max_tokens)
    shape = tuple(processor.pixels(np.zeros((1, 2 * size, 3 * size, 3), np.uint8)).shape[2:])
    if shape != (size, size):
        raise DataError(
            f"{key}: {folder / 'preprocessor_config.json'} makes images of {shape[0]}x{shape[1]} pixels, the "
            f"model takes {size}x{size}. Use the model's own processor, or set resize: squash."
        )
    _check_tokens(key, folder, tokenizer, encoder)
    return processor


def _check_tokens(key: str, folder: Path, tokenizer: CLIPTokenizer, encoder: ClipEncoder) -> None:
    """Reject a tokenizer of another model: with an unknown end token the model would pool every text at its start."""
    text = encoder.model.config.text_config
    end = len(tokenizer) - 1 if text.eos_token_id == _FIRST_EOS else text.eos_token_id
    if len(tokenizer) > text.vocab_size or tokenizer.eos_token_id != end:
        raise DataError(
            f"{key}: the tokenizer in {folder} has {len(tokenizer)} tokens and ends texts with number "
            f"{tokenizer.eos_token_id}; the model has {text.vocab_size} tokens and needs {end} at the end. Use the "
            "model's own tokenizer."
        )
