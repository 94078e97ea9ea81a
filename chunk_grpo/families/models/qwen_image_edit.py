"""Qwen-Image-Edit-2509 and -2511: folders and hub ids with a diffusers QwenImageEditPlusPipeline. They only edit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import diffusers
import torch
from diffusers.pipelines.qwenimage.pipeline_qwenimage_edit_plus import CONDITION_IMAGE_SIZE, calculate_dimensions
from PIL import Image
from torch import Tensor
from transformers import Qwen2VLProcessor
from transformers.processing_utils import ProcessorMixin

from chunk_grpo.families.base import Conditioning, Picture
from chunk_grpo.families.models.qwen_image import QwenImageFamily
from chunk_grpo.families.sources import as_pixels, needs_pictures, token_grid
from chunk_grpo.image_files import AWAY

_SHOWN = 235 + len("Picture 1: ") + 2
"""Most tokens before a prompt. A picture with a ratio of at most 30 takes up to 235, the words around it the rest."""


class PictureProcessor(Qwen2VLProcessor):  # type: ignore[misc]  # transformers has no types for it
    """The processor without its part for videos, which needs torchvision."""

    def __init__(self, image_processor: Any = None, tokenizer: Any = None, chat_template: str | None = None) -> None:
        self.image_token = "<|image_pad|>"
        self.image_token_id = tokenizer.convert_tokens_to_ids(self.image_token)
        ProcessorMixin.__init__(self, image_processor, tokenizer, chat_template=chat_template)


class QwenImageEditPlusPipeline(diffusers.QwenImageEditPlusPipeline):  # type: ignore[misc]  # diffusers has no types
    """The pipeline, whose processor needs no torchvision. It has the name that a checkpoint's model_index.json says."""

    @classmethod
    def from_pretrained(cls, folder: str | Path, **parts: Any) -> Any:
        """Load a folder, with the given parts in place of its own. Texts are split by the processor's tokenizer."""
        if "processor" not in parts:
            parts["processor"] = PictureProcessor.from_pretrained(folder, subfolder="processor")
        return super().from_pretrained(folder, **{"tokenizer": None, **parts})


class QwenImageEditFamily(QwenImageFamily):
    """Qwen-Image-Edit. The text encoder is shown the picture, so that the negative prompt's tensors are a row's own."""

    pipeline_class = QwenImageEditPlusPipeline
    components: ClassVar = {**QwenImageFamily.components, "text": ("text_encoder", "processor")}
    tokenizers: ClassVar = {"Qwen2.5-VL": ("processor", True)}
    edits = True
    only_edits = True

    @property
    def text_limit(self) -> int | None:
        """As of Qwen-Image; the picture's tokens are before the prompt's."""
        limit = super().text_limit
        return None if limit is None else limit - _SHOWN

    @torch.no_grad()
    def encode(
        self, prompts: Sequence[str], sources: Sequence[Picture] | None = None, negative: str | None = None
    ) -> Conditioning:
        """The prompts' and the negative prompt's tensors, each with the row's picture; see `Family.encode`."""
        if sources is None:
            raise needs_pictures(type(self).__module__)
        found = dict(self._of_edits(prompts, sources))
        if negative is not None:
            away = self._of_edits([negative] * len(prompts), sources)
            found |= {AWAY + name: tensor for name, tensor in away.items()}
        return Conditioning({**found, **self.source_tensors(as_pixels(sources, self.device))})

    def text_tensors(self, prompts: Sequence[str]) -> Mapping[str, Tensor]:
        """As of Qwen-Image, without pictures."""
        return self._encoded(prompts, self._length)

    def text_example(self, tokens: int) -> Mapping[str, Tensor]:
        """As of Qwen-Image, with the picture's tokens."""
        return super().text_example(tokens + _SHOWN)

    def source_tensors(self, pictures: Tensor) -> Mapping[str, Tensor]:
        """`source` [B, D, R, K]: tokens of the latents that the VAE finds most likely, their channels normalised."""
        vae = self._pipeline.vae
        latents = vae.encode(pictures.to(vae.dtype).unsqueeze(2)).latent_dist.mode()
        mean, std = self._channels(latents)
        return {"source": token_grid(((latents - mean) / std).squeeze(2))}

    @property
    def _length(self) -> int:
        return self._options.max_sequence_length + _SHOWN

    def _of_edits(self, prompts: Sequence[str], sources: Sequence[Picture]) -> Mapping[str, Tensor]:
        """`text_tensors` of prompts with pictures, one by one: the pipeline shows each prompt all of its pictures."""
        rows = [
            self._encoded([prompt], self._length, image=[self._shown(source)])
            for prompt, source in zip(prompts, sources, strict=True)
        ]
        return {name: torch.cat([row[name] for row in rows]) for name in rows[0]}

    def _shown(self, picture: Picture) -> Image.Image:
        """A picture at the size at which the text encoder sees it."""
        image = Image.fromarray(picture)
        width, height = calculate_dimensions(CONDITION_IMAGE_SIZE, image.width / image.height)
        resized: Image.Image = self._pipeline.image_processor.resize(image, height, width)
        return resized


FAMILY = QwenImageEditFamily
