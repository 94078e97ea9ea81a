"""Qwen-Image: folders and hub ids with a diffusers QwenImagePipeline."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from diffusers import QwenImagePipeline, QwenImageTransformer2DModel
from torch import Tensor, nn
from torch.nn.functional import pad

from chunk_grpo.families.diffusers_family import DiffusersFamily
from chunk_grpo.families.packing import to_pixels
from chunk_grpo.families.sources import followed


class QwenImageFamily(DiffusersFamily):
    """Qwen-Image. Text: tokens of Qwen2.5-VL, and a mask."""

    pipeline_class: ClassVar[Any] = QwenImagePipeline
    network_class = QwenImageTransformer2DModel
    tokenizers: ClassVar = {"Qwen2.5-VL": ("tokenizer", True)}

    @classmethod
    def token_count(cls, tokenizer: Any, prompt: str) -> int:
        """Tokens of a prompt in the template, without the template's first ones, which the network does not get."""
        template = cls.pipeline_class(**dict.fromkeys(inspect.signature(cls.pipeline_class).parameters))
        text = template.prompt_template_encode.format(prompt)
        return super().token_count(tokenizer, text) - int(template.prompt_template_encode_start_idx)

    @property
    def text_limit(self) -> int | None:
        """Positions of the text follow those of the image, which lie around 0, in one table."""
        table = self.transformer.pos_embed.pos_freqs
        return int(table.shape[0] - max(self._rows, self._columns) // 2)

    def text_tensors(self, prompts: Sequence[str]) -> Mapping[str, Tensor]:
        """`prompt_embeds` [B, T, E], padded with zeros, and `mask` [B, T], which is False there."""
        return self._encoded(prompts, self._options.max_sequence_length)

    def _encoded(self, prompts: Sequence[str], length: int, **shown: Any) -> Mapping[str, Tensor]:
        """Tensors [B, T, ...] of the text encoder's outputs, padded to `length`, by what the pipeline shows it."""
        found, mask = self._pipeline.encode_prompt(
            list(prompts), device=self.device, max_sequence_length=self._options.max_sequence_length, **shown
        )
        if mask is None:
            mask = torch.ones(found.shape[:2], device=found.device)
        more = length - found.shape[1]  # less than 0: the text is cut off
        return {"prompt_embeds": pad(found, (0, 0, 0, more)), "mask": pad(mask.bool(), (0, more))}

    def text_example(self, tokens: int) -> Mapping[str, Tensor]:
        """`prompt_embeds` [1, T, E] and `mask` [1, T]."""
        width = int(self.transformer.config.joint_attention_dim)
        return {
            "prompt_embeds": torch.zeros(1, tokens, width, dtype=self._options.dtype),
            "mask": torch.ones(1, tokens, dtype=torch.bool),
        }

    def network_output(self, network: nn.Module, x: Tensor, t: Tensor, text: Mapping[str, Tensor]) -> Tensor:
        """Velocity [B, L, D]. Tokens of a source follow those of the image, as a further frame."""
        source, frames = text.get("source"), [(1, self._rows, self._columns)]
        if source is not None:
            frames.append((1, source.shape[2], source.shape[3]))
        output: Tensor = network(
            hidden_states=x if source is None else followed(x, source),
            timestep=t.to(x.dtype),
            encoder_hidden_states=text["prompt_embeds"],
            encoder_hidden_states_mask=text["mask"],
            img_shapes=[frames] * len(x),
            return_dict=False,
        )[0]
        return output[:, : x.shape[1]]

    def unused_modules(self) -> Sequence[nn.Module]:
        """The text's part of the last block, but for its keys and values."""
        last = self.transformer.transformer_blocks[-1]
        return last.attn.to_add_out, last.txt_mlp

    def guided(self, towards: Tensor, away: Tensor, scale: float) -> Tensor:
        """Guided velocity with each token's norm that of the prompt's velocity, as in the pipeline."""
        mixed = super().guided(towards, away, scale)
        scaled: Tensor = mixed * (towards.norm(dim=-1, keepdim=True) / mixed.norm(dim=-1, keepdim=True))
        return scaled

    def vae_latents(self, latents: Tensor) -> Tensor:
        """Latent pixels [B, C, 1, 2 R, 2 K] on the VAE's scale, a video of one frame."""
        mean, std = self._channels(latents)
        return to_pixels(latents, self._rows).unsqueeze(2) * std + mean

    def _channels(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation [1, C, 1, 1, 1] of each channel of latent pixels, by the VAE."""
        config = self._pipeline.vae.config
        mean, std = (
            torch.tensor(values, device=like.device, dtype=like.dtype).view(1, -1, 1, 1, 1)
            for values in (config.latents_mean, config.latents_std)
        )
        return mean, std


FAMILY = QwenImageFamily
