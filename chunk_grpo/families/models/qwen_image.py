"""Qwen-Image: folders and hub ids with a diffusers QwenImagePipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from diffusers import QwenImagePipeline, QwenImageTransformer2DModel
from torch import Tensor, nn
from torch.nn.functional import pad

from chunk_grpo.families.diffusers_family import DiffusersFamily
from chunk_grpo.families.packing import to_pixels


class QwenImageFamily(DiffusersFamily):
    """Qwen-Image. Text: tokens of Qwen2.5-VL, and a mask."""

    pipeline_class = QwenImagePipeline
    network_class = QwenImageTransformer2DModel
    components: ClassVar = {
        "text": ("text_encoder", "tokenizer"),
        "transformer": ("transformer",),
        "vae": ("vae",),
    }
    tokenizers: ClassVar = {"Qwen2.5-VL": ("tokenizer", True)}

    @classmethod
    def token_count(cls, tokenizer: Any, prompt: str) -> int:
        """Tokens of a prompt in the template, without the template's first ones, which the network does not get."""
        template = cls.pipeline_class(None, None, None, None, None)
        text = template.prompt_template_encode.format(prompt)
        return super().token_count(tokenizer, text) - int(template.prompt_template_encode_start_idx)

    @property
    def text_limit(self) -> int | None:
        """Positions of the text follow those of the image, which lie around 0, in one table."""
        table = self.transformer.pos_embed.pos_freqs
        return int(table.shape[0] - max(self._rows, self._columns) // 2)

    def text_tensors(self, prompts: Sequence[str]) -> Mapping[str, Tensor]:
        """`prompt_embeds` [B, T, E], padded with zeros, and `mask` [B, T], which is False there."""
        limit = self._options.max_sequence_length
        found, mask = self._pipeline.encode_prompt(
            list(prompts), device=self.device, max_sequence_length=limit
        )
        if mask is None:
            mask = torch.ones(found.shape[:2], device=found.device)
        more = limit - found.shape[1]
        return {"prompt_embeds": pad(found, (0, 0, 0, more)), "mask": pad(mask.bool(), (0, more))}

    def text_example(self, tokens: int) -> Mapping[str, Tensor]:
        """`prompt_embeds` [1, T, E] and `mask` [1, T]."""
        width = int(self.transformer.config.joint_attention_dim)
        return {
            "prompt_embeds": torch.zeros(1, tokens, width, dtype=self._options.dtype),
            "mask": torch.ones(1, tokens, dtype=torch.bool),
        }

    def network_output(self, network: nn.Module, x: Tensor, t: Tensor, text: Mapping[str, Tensor]) -> Tensor:
        """Velocity [B, L, D]."""
        output: Tensor = network(
            hidden_states=x,
            timestep=t.to(x.dtype),
            encoder_hidden_states=text["prompt_embeds"],
            encoder_hidden_states_mask=text["mask"],
            img_shapes=[[(1, self._rows, self._columns)]] * len(x),
            return_dict=False,
        )[0]
        return output

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
        config = self._pipeline.vae.config
        mean, std = (
            torch.tensor(values, device=latents.device, dtype=latents.dtype).view(1, -1, 1, 1, 1)
            for values in (config.latents_mean, config.latents_std)
        )
        scaled: Tensor = to_pixels(latents, self._rows).unsqueeze(2) * std + mean
        return scaled


FAMILY = QwenImageFamily
