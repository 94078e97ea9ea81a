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
        "text": ("text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2"),
        "transformer": ("transformer",),
        "vae": ("vae",),
    }
    tokenizers: ClassVar = {"CLIP": ("tokenizer", False), "T5": ("tokenizer_2", True)}

    def __init__(self, pipeline: Any, options: LoadOptions) -> None:
        """Wrap a pipeline; see `DiffusersFamily`."""
        super().__init__(pipeline, options)
        self._ids: dict[tuple[torch.device, torch.dtype], Tensor] = {}

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
        guidance = None
        if self.transformer.config.guidance_embeds:
            guidance = torch.full((len(x),), self._options.guidance_scale, device=x.device, dtype=x.dtype)
        prompt_embeds = text["prompt_embeds"]
        output: Tensor = network(
            hidden_states=x,
            timestep=t,
            guidance=guidance,
            pooled_projections=text["pooled"],
            encoder_hidden_states=prompt_embeds,
            txt_ids=torch.zeros(prompt_embeds.shape[1], 3, device=x.device, dtype=x.dtype),
            img_ids=self._image_ids(x.device, x.dtype),
            return_dict=False,
        )[0]
        return output

    def _image_ids(self, device: torch.device, dtype: torch.dtype) -> Tensor:
        # diffusers makes them on the CPU: sent with every pass, they would make each pass wait for the device.
        if (device, dtype) not in self._ids:
            self._ids[device, dtype] = FluxPipeline._prepare_latent_image_ids(
                1, self._rows, self._columns, device, dtype
            )
        return self._ids[device, dtype]

    def vae_latents(self, latents: Tensor) -> Tensor:
        """Unpacked latents, on the VAE's scale."""
        unpacked: Tensor = FluxPipeline._unpack_latents(
            latents, self._options.height, self._options.width, self._pipeline.vae_scale_factor
        )
        config = self._pipeline.vae.config
        scaled: Tensor = unpacked / config.scaling_factor + config.shift_factor
        return scaled


FAMILY = FluxFamily
