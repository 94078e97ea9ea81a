"""FLUX.1 Kontext: edits a picture. The network reads the picture's latent tokens behind those of the image."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from diffusers import FluxKontextPipeline
from torch import Tensor, nn

from chunk_grpo.families.models.flux import FluxFamily
from chunk_grpo.families.sources import followed, token_grid


class FluxKontextFamily(FluxFamily):
    """FLUX.1 Kontext. Without source pictures it draws as FLUX.1 does."""

    pipeline_class = FluxKontextPipeline
    edits = True

    def source_tensors(self, pictures: Tensor) -> Mapping[str, Tensor]:
        """`source` [B, D, R, K]: tokens of the latents that the VAE finds most likely."""
        vae = self._pipeline.vae
        latents = vae.encode(pictures.to(vae.dtype)).latent_dist.mode()
        return {"source": token_grid((latents - vae.config.shift_factor) * vae.config.scaling_factor)}

    def network_output(self, network: nn.Module, x: Tensor, t: Tensor, text: Mapping[str, Tensor]) -> Tensor:
        """Velocity [B, L, D] of the image's tokens. Tokens of the source follow them; their first place is 1."""
        if "source" not in text:
            return super().network_output(network, x, t, text)
        source = text["source"]
        there = self.places((source.shape[2], source.shape[3]), 1, x.device, x.dtype)
        ids = torch.cat([self.image_ids(x.device, x.dtype), there])
        return self.velocity_at(ids, network, followed(x, source), t, text)[:, : x.shape[1]]


FAMILY = FluxKontextFamily
