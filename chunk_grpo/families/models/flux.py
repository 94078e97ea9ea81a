"""FLUX.1: folders and hub ids with a diffusers FluxPipeline, from the toy checkpoint to FLUX.1-dev."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from diffusers import FluxPipeline, FluxTransformer2DModel
from torch import Tensor, nn

from chunk_grpo.families.base import LoadOptions
from chunk_grpo.families.diffusers_family import DiffusersFamily


class FluxFamily(DiffusersFamily):
    """FLUX.1. Text: T5's tokens and CLIP's pooled vector. The guidance strength is an input of the network."""

    pipeline_class = FluxPipeline
    network_class = FluxTransformer2DModel
    components: ClassVar = {
        **DiffusersFamily.components,
        "text": ("text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2"),
    }
    tokenizers: ClassVar = {"CLIP": ("tokenizer", False), "T5": ("tokenizer_2", True)}
    original_layers: ClassVar = {
        ("double_blocks.{}.", "transformer_blocks.{}."): {
            "img_attn.qkv": "attn.to_q attn.to_k attn.to_v",
            "txt_attn.qkv": "attn.add_q_proj attn.add_k_proj attn.add_v_proj",
            "img_attn.proj": "attn.to_out.0", "txt_attn.proj": "attn.to_add_out",
            "img_mlp.0": "ff.net.0.proj", "img_mlp.2": "ff.net.2",
            "txt_mlp.0": "ff_context.net.0.proj", "txt_mlp.2": "ff_context.net.2",
            "img_mod.lin": "norm1.linear", "txt_mod.lin": "norm1_context.linear",
            "processor.qkv_lora1": "attn.to_q attn.to_k attn.to_v",
            "processor.qkv_lora2": "attn.add_q_proj attn.add_k_proj attn.add_v_proj",
            "processor.proj_lora1": "attn.to_out.0", "processor.proj_lora2": "attn.to_add_out",
        },
        ("single_blocks.{}.", "single_transformer_blocks.{}."): {
            "linear1": "attn.to_q attn.to_k attn.to_v proj_mlp",
            "linear2": "proj_out", "modulation.lin": "norm.linear",
            "processor.qkv_lora": "attn.to_q attn.to_k attn.to_v", "processor.proj_lora": "proj_out",
        },
        ("", ""): {
            "img_in": "x_embedder", "txt_in": "context_embedder",
            "time_in.in_layer": "time_text_embed.timestep_embedder.linear_1",
            "time_in.out_layer": "time_text_embed.timestep_embedder.linear_2",
            "vector_in.in_layer": "time_text_embed.text_embedder.linear_1",
            "vector_in.out_layer": "time_text_embed.text_embedder.linear_2",
            "guidance_in.in_layer": "time_text_embed.guidance_embedder.linear_1",
            "guidance_in.out_layer": "time_text_embed.guidance_embedder.linear_2",
            "final_layer.linear": "proj_out", "final_layer.adaLN_modulation.1": "norm_out.linear",
        },
    }  # fmt: skip

    def __init__(self, pipeline: Any, options: LoadOptions) -> None:
        """Wrap a pipeline; see `DiffusersFamily`."""
        super().__init__(pipeline, options)
        self._ids: dict[tuple[tuple[int, int], int, torch.device, torch.dtype], Tensor] = {}

    def text_tensors(self, prompts: Sequence[str]) -> Mapping[str, Tensor]:
        """`prompt_embeds` [B, T, E] of T5 and `pooled` [B, F] of CLIP."""
        prompt_embeds, pooled, _ = self._pipeline.encode_prompt(
            prompt=list(prompts),
            prompt_2=None,
            device=self.device,
            max_sequence_length=self._options.max_sequence_length,
        )
        return {"prompt_embeds": prompt_embeds, "pooled": pooled}

    def text_example(self, tokens: int) -> Mapping[str, Tensor]:
        """`prompt_embeds` [1, T, E] and `pooled` [1, F]."""
        config, dtype = self.transformer.config, self._options.dtype
        return {
            "prompt_embeds": torch.zeros(1, tokens, config.joint_attention_dim, dtype=dtype),
            "pooled": torch.zeros(1, config.pooled_projection_dim, dtype=dtype),
        }

    def network_output(self, network: nn.Module, x: Tensor, t: Tensor, text: Mapping[str, Tensor]) -> Tensor:
        """Velocity [B, L, D]. The noise level goes to the network unscaled (docs/deviations.md, timestep)."""
        return self.velocity_at(self.image_ids(x.device, x.dtype), network, x, t, text)

    def velocity_at(self, ids: Tensor, network: nn.Module, x: Tensor, t: Tensor, text: Mapping[str, Tensor]) -> Tensor:
        """As `network_output`, of tokens at the places `ids` [L, 3]."""
        guidance = None
        if self.transformer.config.guidance_embeds:
            guidance = torch.full((len(x),), self._options.guidance_scale, device=x.device, dtype=x.dtype)
        prompt_embeds = text["prompt_embeds"]
        output: Tensor = network(
            hidden_states=x,
            timestep=t.to(x.dtype),
            guidance=guidance,
            pooled_projections=text["pooled"],
            encoder_hidden_states=prompt_embeds,
            txt_ids=torch.zeros(prompt_embeds.shape[1], 3, device=x.device, dtype=x.dtype),
            img_ids=ids,
            return_dict=False,
        )[0]
        return output

    def image_ids(self, device: torch.device, dtype: torch.dtype) -> Tensor:
        """Places [L, 3] of the image's tokens."""
        return self.places((self._rows, self._columns), 0, device, dtype)

    def places(self, grid: tuple[int, int], first: int, device: torch.device, dtype: torch.dtype) -> Tensor:
        """Places [rows * columns, 3] of a grid's tokens, (first, row, column)."""
        # diffusers makes them on the CPU: sent with every pass, they would make each pass wait for the device.
        key = (grid, first, device, dtype)
        if key not in self._ids:
            ids = FluxPipeline._prepare_latent_image_ids(1, *grid, torch.device("cpu"), dtype)
            ids[:, 0] = first
            self._ids[key] = ids.to(device)
        return self._ids[key]


FAMILY = FluxFamily
