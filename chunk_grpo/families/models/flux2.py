"""FLUX.2-dev: folders and hub ids with a diffusers Flux2Pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from diffusers import Flux2Pipeline, Flux2Transformer2DModel
from diffusers.pipelines.flux2.pipeline_flux2 import compute_empirical_mu, format_input
from torch import Tensor, nn

from chunk_grpo.families.diffusers_family import DiffusersFamily
from chunk_grpo.families.packing import to_pixels
from chunk_grpo.families.sources import followed, token_grid

_SOURCE_FRAME = 10
"""First position of the tokens of the first reference image in diffusers' pipelines."""


class Flux2Family(DiffusersFamily):
    """FLUX.2. Text: tokens of three layers of a language model, padding too. The guidance strength is an input.

    A picture to edit is the first of the pipeline's reference images.
    """

    pipeline_class: ClassVar[Any] = Flux2Pipeline
    network_class = Flux2Transformer2DModel
    edits = True
    tokenizers: ClassVar = {"Mistral": ("tokenizer", True)}
    original_layers: ClassVar = {
        ("double_blocks.{}.", "transformer_blocks.{}."): {
            "img_attn.qkv": "attn.to_q attn.to_k attn.to_v",
            "txt_attn.qkv": "attn.add_q_proj attn.add_k_proj attn.add_v_proj",
            "img_attn.proj": "attn.to_out.0", "txt_attn.proj": "attn.to_add_out",
            "img_mlp.0": "ff.linear_in", "img_mlp.2": "ff.linear_out",
            "txt_mlp.0": "ff_context.linear_in", "txt_mlp.2": "ff_context.linear_out",
        },
        ("single_blocks.{}.", "single_transformer_blocks.{}."): {
            "linear1": "attn.to_qkv_mlp_proj", "linear2": "attn.to_out",
        },
        ("", ""): {
            "img_in": "x_embedder", "txt_in": "context_embedder",
            "time_in.in_layer": "time_guidance_embed.timestep_embedder.linear_1",
            "time_in.out_layer": "time_guidance_embed.timestep_embedder.linear_2",
            "guidance_in.in_layer": "time_guidance_embed.guidance_embedder.linear_1",
            "guidance_in.out_layer": "time_guidance_embed.guidance_embedder.linear_2",
            "double_stream_modulation_img.lin": "double_stream_modulation_img.linear",
            "double_stream_modulation_txt.lin": "double_stream_modulation_txt.linear",
            "single_stream_modulation.lin": "single_stream_modulation.linear",
            "final_layer.linear": "proj_out", "final_layer.adaLN_modulation.1": "norm_out.linear",
        },
    }  # fmt: skip

    @classmethod
    def token_count(cls, tokenizer: Any, prompt: str) -> int:
        """Tokens of a prompt in the chat template, with the pipeline's system message."""
        (message,) = format_input([prompt])
        return len(tokenizer.apply_chat_template(message, add_generation_prompt=False, return_dict=False))

    def text_tensors(self, prompts: Sequence[str]) -> Mapping[str, Tensor]:
        """`prompt_embeds` [B, T, E]."""
        prompt_embeds, _ = self._pipeline.encode_prompt(
            prompt=list(prompts), device=self.device, max_sequence_length=self._options.max_sequence_length
        )
        return {"prompt_embeds": prompt_embeds}

    def text_example(self, tokens: int) -> Mapping[str, Tensor]:
        """`prompt_embeds` [1, T, E]."""
        width = int(self.transformer.config.joint_attention_dim)
        return {"prompt_embeds": torch.zeros(1, tokens, width, dtype=self._options.dtype)}

    def source_tensors(self, pictures: Tensor) -> Mapping[str, Tensor]:
        """`source` [B, D, R, K]: tokens of the latents that the VAE finds most likely, their channels normalised."""
        vae = self._pipeline.vae
        grid = token_grid(vae.encode(pictures.to(vae.dtype)).latent_dist.mode())
        mean, spread = (each.to(grid).view(1, -1, 1, 1) for each in self._channels())
        return {"source": (grid - mean) / spread}

    def dynamic_shift(self, num_steps: int) -> float:
        """Logarithm of the shift, by image size and number of steps."""
        return float(compute_empirical_mu(self._rows * self._columns, num_steps))

    def network_output(self, network: nn.Module, x: Tensor, t: Tensor, text: Mapping[str, Tensor]) -> Tensor:
        """Velocity [B, L, D]. Positions are (frame, row, column, number of the word); a source is frame 10."""
        prompt_embeds, source = text["prompt_embeds"], text.get("source")
        ids = _positions(self._rows, self._columns, 1, x.device)
        if source is not None:
            there = _positions(source.shape[2], source.shape[3], 1, x.device, first=_SOURCE_FRAME)
            ids = torch.cat([ids, there])
        guidance = None
        if self.transformer.config.guidance_embeds:
            guidance = torch.full((len(x),), self._options.guidance_scale, device=x.device)
        output: Tensor = network(
            hidden_states=x if source is None else followed(x, source),
            timestep=t.to(x.dtype),
            guidance=guidance,
            encoder_hidden_states=prompt_embeds,
            txt_ids=_positions(1, 1, prompt_embeds.shape[1], x.device),
            img_ids=ids,
            return_dict=False,
        )[0]
        return output[:, : x.shape[1]]

    def vae_latents(self, latents: Tensor) -> Tensor:
        """Latent pixels on the VAE's scale, which normalises the channels of tokens."""
        mean, spread = (each.to(latents) for each in self._channels())
        return to_pixels(latents * spread + mean, self._rows)

    def _channels(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation [D] of each channel of tokens, by the VAE."""
        vae = self._pipeline.vae
        return vae.bn.running_mean, torch.sqrt(vae.bn.running_var + vae.config.batch_norm_eps)


def _positions(rows: int, columns: int, words: int, device: torch.device, first: int = 0) -> Tensor:
    """Position [n, 4] of each token, of frame `first`, made on the device so that no pass waits for it."""
    frame = torch.arange(first, first + 1, device=device)
    return torch.cartesian_prod(frame, *(torch.arange(n, device=device) for n in (rows, columns, words)))


FAMILY = Flux2Family
