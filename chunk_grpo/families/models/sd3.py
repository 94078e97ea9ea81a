"""Stable Diffusion 3 and 3.5: folders and hub ids with a diffusers StableDiffusion3Pipeline."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import torch
from diffusers import SD3Transformer2DModel, StableDiffusion3Pipeline
from torch import Tensor, nn

from chunk_grpo.families.diffusers_family import DiffusersFamily
from chunk_grpo.families.packing import to_pixels, to_tokens


class SD3Family(DiffusersFamily):
    """SD3. Text: tokens of two CLIP encoders and T5 in one sequence, and the pooled vectors of both CLIP encoders."""

    pipeline_class = StableDiffusion3Pipeline
    network_class = SD3Transformer2DModel
    components: ClassVar = {
        "text": (*("text_encoder", "text_encoder_2", "text_encoder_3"), *("tokenizer", "tokenizer_2", "tokenizer_3")),
        "transformer": ("transformer",),
        "vae": ("vae",),
    }
    tokenizers: ClassVar = {
        "CLIP-L": ("tokenizer", False),
        "CLIP-G": ("tokenizer_2", False),
        "T5": ("tokenizer_3", True),
    }
    original_layers: ClassVar = {
        ("joint_blocks.{}.x_block.", "transformer_blocks.{}."): {
            "attn.qkv": "attn.to_q attn.to_k attn.to_v", "attn.proj": "attn.to_out.0",
            "attn2.qkv": "attn2.to_q attn2.to_k attn2.to_v", "attn2.proj": "attn2.to_out.0",
            "mlp.fc1": "ff.net.0.proj", "mlp.fc2": "ff.net.2", "adaLN_modulation.1": "norm1.linear",
        },
        ("joint_blocks.{}.context_block.", "transformer_blocks.{}."): {
            "attn.qkv": "attn.add_q_proj attn.add_k_proj attn.add_v_proj", "attn.proj": "attn.to_add_out",
            "mlp.fc1": "ff_context.net.0.proj", "mlp.fc2": "ff_context.net.2",
            "adaLN_modulation.1": "norm1_context.linear",
        },
        ("", ""): {
            "x_embedder.proj": "pos_embed.proj",
            "t_embedder.mlp.0": "time_text_embed.timestep_embedder.linear_1",
            "t_embedder.mlp.2": "time_text_embed.timestep_embedder.linear_2",
            "y_embedder.mlp.0": "time_text_embed.text_embedder.linear_1",
            "y_embedder.mlp.2": "time_text_embed.text_embedder.linear_2",
            "final_layer.linear": "proj_out", "final_layer.adaLN_modulation.1": "norm_out.linear",
        },
    }  # fmt: skip
    grid_is_even = False

    @property
    def latent_shape(self) -> tuple[int, int]:
        """(L, D): a token has the channels of 2 x 2 latent pixels."""
        return self._rows * self._columns, 4 * int(self.transformer.config.in_channels)

    @property
    def grid_limit(self) -> int | None:
        """The network crops its positions out of a square table."""
        config = self.transformer.config
        return int(config.pos_embed_max_size * config.patch_size // self.latent_pixels_per_token)

    def text_tensors(self, prompts: Sequence[str]) -> Mapping[str, Tensor]:
        """`prompt_embeds` [B, T, E] and `pooled` [B, F]."""
        prompt_embeds, _, pooled, _ = self._pipeline.encode_prompt(
            prompt=list(prompts),
            prompt_2=None,
            prompt_3=None,
            device=self.device,
            do_classifier_free_guidance=False,
            max_sequence_length=self._options.max_sequence_length,
        )
        return {"prompt_embeds": prompt_embeds, "pooled": pooled}

    def text_example(self, tokens: int) -> Mapping[str, Tensor]:
        """`prompt_embeds` [1, T, E] of CLIP's tokens and T5's `tokens`, and `pooled` [1, F]."""
        config, dtype = self.transformer.config, self._options.dtype
        length = _clip_tokens(Path(self._options.checkpoint)) + tokens
        return {
            "prompt_embeds": torch.zeros(1, length, config.joint_attention_dim, dtype=dtype),
            "pooled": torch.zeros(1, config.pooled_projection_dim, dtype=dtype),
        }

    def network_output(self, network: nn.Module, x: Tensor, t: Tensor, text: Mapping[str, Tensor]) -> Tensor:
        """Velocity [B, L, D]. The network takes images of latent pixels, and noise levels in thousandths."""
        output: Tensor = network(
            hidden_states=to_pixels(x, self._rows),
            timestep=1000 * t,
            encoder_hidden_states=text["prompt_embeds"],
            pooled_projections=text["pooled"],
            return_dict=False,
        )[0]
        return to_tokens(output)


def _clip_tokens(folder: Path) -> int:
    """Tokens to which the pipeline pads CLIP's prompts: its tokenizer's limit, 77 without a folder that says it."""
    path = folder / "tokenizer" / "tokenizer_config.json"
    return int(json.loads(path.read_text("utf-8"))["model_max_length"]) if path.is_file() else 77


FAMILY = SD3Family
