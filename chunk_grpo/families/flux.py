"""FLUX.1: any folder or hub id that holds a diffusers FluxPipeline, from the toy checkpoint to FLUX.1-dev."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from diffusers import FluxPipeline, FluxTransformer2DModel
from torch import Tensor, nn

from chunk_grpo.errors import ConfigError, DataError
from chunk_grpo.families.base import Conditioning, LoadOptions, Part
from chunk_grpo.families.checkpoint import check_checkpoint

PIPELINE_CLASS = "FluxPipeline"

_PART_COMPONENTS: dict[Part, tuple[str, ...]] = {
    "text": ("text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2"),
    "transformer": ("transformer",),
    "vae": ("vae",),
}


class FluxFamily:
    """Adapter around the parts of a FluxPipeline; the sampler is ours (chunk_grpo.core.rollout)."""

    def __init__(self, pipeline: FluxPipeline, options: LoadOptions) -> None:
        """Wrap a pipeline; use `load` to get one from a checkpoint.

        Raises:
            ConfigError: The image size does not fit the checkpoint's token grid.
        """
        self._pipeline = pipeline
        self._options = options
        # One latent token covers a square of 2 x 2 latent pixels. Without a VAE nothing is said of pixels.
        side = 2 * pipeline.vae_scale_factor
        if pipeline.vae is not None and (options.height % side or options.width % side):
            raise ConfigError(
                f"model.height and model.width, generate.height and generate.width: must be multiples of {side} for "
                f"{options.checkpoint}, got {options.height} and {options.width}"
            )
        self._rows, self._columns = options.height // side, options.width // side

    @classmethod
    def load(cls, options: LoadOptions, parts: Sequence[Part] = ("text", "transformer", "vae")) -> FluxFamily:
        """Load the named parts of a checkpoint and leave the others out of memory.

        Args:
            options: Which checkpoint, and how.
            parts: What will be used.

        Raises:
            DataError: The checkpoint is missing, incomplete or of another family.
            ConfigError: The image size does not fit its token grid.
        """
        left_out: dict[str, None] = {
            name: None for part, names in _PART_COMPONENTS.items() if part not in parts for name in names
        }
        # The VAE's configuration sets the token grid, so the (small) VAE stays whenever latents are made.
        if "transformer" in parts:
            left_out.pop("vae", None)
        wanted = [name for names in _PART_COMPONENTS.values() for name in names if name not in left_out]
        check_checkpoint(options.checkpoint, PIPELINE_CLASS, wanted)
        try:
            pipeline = FluxPipeline.from_pretrained(
                options.checkpoint, revision=options.revision, dtype=options.dtype, **left_out
            )
        except (OSError, ValueError) as error:
            raise DataError(
                f"model.checkpoint: cannot load {options.checkpoint} (revision {options.revision}): {error}. "
                "A hub id needs the network and, for FLUX.1-dev, an accepted licence and `hf auth login`."
            ) from error
        pipeline.set_progress_bar_config(disable=True)
        for name in ("text_encoder", "text_encoder_2", "transformer", "vae"):
            module = getattr(pipeline, name, None)
            if module is not None:
                module.requires_grad_(False).eval().to(options.device)
        if pipeline.vae is not None:
            # Convolutions on a CPU run several times faster with the channels last; on a GPU it does no harm.
            pipeline.vae.to(memory_format=torch.channels_last)
        return cls(pipeline, options)

    @property
    def latent_shape(self) -> tuple[int, int]:
        """(L, D) of the packed latents at the configured image size."""
        return self._rows * self._columns, int(self.transformer.config.in_channels)

    @property
    def transformer(self) -> FluxTransformer2DModel:
        """The velocity network."""
        network = self._pipeline.transformer
        if network is None:
            raise ValueError('the part "transformer" was not loaded: name it in parts=')
        return network

    @torch.no_grad()
    def encode(self, prompts: Sequence[str]) -> Conditioning:
        """Both text encoders' outputs: T5 tokens and the CLIP pooled vector."""
        if self._pipeline.text_encoder is None:
            raise ValueError('the part "text" was not loaded: name it in parts=')
        prompt_embeds, pooled, _ = self._pipeline.encode_prompt(
            prompt=list(prompts),
            prompt_2=None,
            device=torch.device(self._options.device),
            max_sequence_length=self._options.max_sequence_length,
        )
        return Conditioning(prompt_embeds, pooled)

    def velocity(self, x: Tensor, t: Tensor, conditioning: Conditioning) -> Tensor:
        """Velocity at packed latents.

        Args:
            x: [B, L, D] states.
            t: [B] noise levels in [0, 1], passed to the network as they are (docs/deviations.md, timestep).
            conditioning: B prompts.

        Returns:
            [B, L, D] in the dtype of `x`.
        """
        network = self.transformer
        dtype = self._options.dtype
        guidance = None
        if network.config.guidance_embeds:
            guidance = torch.full((len(x),), self._options.guidance_scale, device=x.device, dtype=dtype)
        prompt_embeds = conditioning.prompt_embeds.to(x.device, dtype)
        text_ids = torch.zeros(prompt_embeds.shape[1], 3, device=x.device, dtype=dtype)
        output: Tensor = network(
            hidden_states=x.to(dtype),
            timestep=t.to(dtype),
            guidance=guidance,
            pooled_projections=conditioning.pooled.to(x.device, dtype),
            encoder_hidden_states=prompt_embeds,
            txt_ids=text_ids,
            img_ids=self._image_ids(x.device, dtype),
            return_dict=False,
        )[0]
        return output.to(x.dtype)

    def _image_ids(self, device: torch.device, dtype: torch.dtype) -> Tensor:
        ids: Tensor = FluxPipeline._prepare_latent_image_ids(1, self._rows, self._columns, device, dtype)
        return ids

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """Images of packed latents [B, L, D], through the VAE's scale and shift."""
        vae = self._pipeline.vae
        unpacked = FluxPipeline._unpack_latents(
            latents.to(self._options.dtype),
            self._options.height,
            self._options.width,
            self._pipeline.vae_scale_factor,
        )
        images: Tensor = vae.decode(
            unpacked / vae.config.scaling_factor + vae.config.shift_factor, return_dict=False
        )[0]
        return (images.float() / 2 + 0.5).clamp(0, 1)

    def trainable_parameters(self) -> Iterator[nn.Parameter]:
        """All weights of the transformer."""
        yield from self.transformer.parameters()

    def frozen_copy(self) -> FluxFamily:
        """A second model with its own copy of the velocity network, the other parts shared."""
        return self.using(copy.deepcopy(self.transformer).requires_grad_(False).eval())

    def with_transformer(self, folder: Path) -> FluxFamily:
        """A second model whose velocity network comes from a saved transformer folder, the other parts shared."""
        network = FluxTransformer2DModel.from_pretrained(folder, dtype=self._options.dtype)
        return self.using(network.requires_grad_(False).eval().to(self._options.device))

    def using(self, network: FluxTransformer2DModel) -> FluxFamily:
        """A second model around `network` itself, the other parts shared."""
        parts = {**self._pipeline.components, "transformer": network}
        return FluxFamily(FluxPipeline(**parts), self._options)

    def save_transformer(self, folder: Path) -> None:
        """Save the velocity network as a diffusers transformer folder."""
        self.transformer.save_pretrained(folder)
