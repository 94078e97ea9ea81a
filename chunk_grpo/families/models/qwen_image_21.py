"""Qwen-Image-2.1: folders and hub ids with a diffusers QwenImage21Pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import diffusers
import torch
from diffusers import AutoencoderKLQwenImage21, QwenImage21Transformer2DModel
from diffusers.models.attention_dispatch import dispatch_attention_fn
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import Qwen3VLForConditionalGeneration

from chunk_grpo.errors import ConfigError
from chunk_grpo.families.base import LoadOptions
from chunk_grpo.families.diffusers_family import DiffusersFamily

_POSITIONS, _NEGATIVE_POSITIONS = 8192, 1024
"""Positions in the network's tables, from 0 up and from -1 down. They are nowhere in its configuration."""


class _NoTokenizer:
    def encode(self, text: str) -> list[int]:
        return [0]


class _NoProcessor:
    """What the pipeline's constructor asks of a processor."""

    tokenizer = _NoTokenizer()

    def apply_chat_template(self, messages: object, **options: object) -> list[list[int]]:
        return [[]]


class QwenImage21Pipeline(diffusers.QwenImage21Pipeline):  # type: ignore[misc]  # diffusers has no types
    """The pipeline, which here may lack its processor, as other pipelines their tokenizer: training encodes no text.

    It has the name that a checkpoint's model_index.json says.
    """

    def __init__(
        self,
        scheduler: Any,
        vae: AutoencoderKLQwenImage21,
        text_encoder: Qwen3VLForConditionalGeneration,
        processor: Any,
        transformer: QwenImage21Transformer2DModel,
        sample_sigmas: list[float] | None = None,
    ) -> None:
        given = _NoProcessor() if processor is None else processor
        super().__init__(scheduler, vae, text_encoder, given, transformer, sample_sigmas)
        self.register_modules(processor=processor)


class AttentionByRow:
    """Attention of text and image, in which the image's position follows its own prompt's text.

    Diffusers' processor places all images of a batch after its longest text, so that a picture depends on the other
    prompts. Text tokens have the positions 0, 1, ... on the first of three axes. An image behind n of them has position
    n there. On the other axes its tokens have the positions of their rows and columns.
    """

    _attention_backend = None
    _parallel_config = None

    def __init__(self, axis: int) -> None:
        """Take the number of channels of a head, in pairs, that the first axis rotates."""
        self._axis = axis

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        rotary_emb: Tensor | None = None,
        segments: Sequence[tuple[int, int, bool]] = (),
        key_valid: Tensor | None = None,
        **unused: object,
    ) -> Tensor:
        """Output [B, N, E] for N tokens, first the text's.

        Args:
            attn: Attention layer of diffusers.
            hidden_states: Tokens [B, N, E].
            rotary_emb: Rotations [N, pairs of channels], complex, of a text without padding.
            segments: Start and end of the text.
            key_valid: Which tokens are no padding, [B, N]; None: all.
            unused: What other processors need.
        """
        words = segments[-1][1] if segments else 0
        query, key, value = (
            layer(hidden_states).unflatten(-1, (attn.heads, -1)) for layer in (attn.to_q, attn.to_k, attn.to_v)
        )
        query, key = attn.norm_q(query).to(value.dtype), attn.norm_k(key).to(value.dtype)
        if rotary_emb is not None:
            rotations = self._by_row(rotary_emb, words, key_valid)
            query, key = _rotated(query, rotations), _rotated(key, rotations)
        mask = None if key_valid is None else key_valid[:, None, None]
        parts = [self._attention(query[:, words:], key, value, attn_mask=mask)]
        if words:
            # Padding is behind the text, where causal attention does not look.
            text = (part[:, :words] for part in (query, key, value))
            parts.insert(0, self._attention(*text, is_causal=True))
        output: Tensor = attn.to_out[0](torch.cat(parts, dim=1).flatten(2).type_as(query))
        return output

    def _by_row(self, rotations: Tensor, words: int, key_valid: Tensor | None) -> Tensor:
        """Rotations [B or 1, N, 1, pairs]."""
        if key_valid is None:
            return rotations[None, :, None]
        own = rotations[key_valid[:, :words].sum(1), : self._axis]  # [B, pairs of the axis]
        found = rotations.repeat(len(own), 1, 1)
        found[:, words:, : self._axis] = own[:, None]
        return found[:, :, None]

    def _attention(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        found: Tensor = dispatch_attention_fn(query, key, value, backend=self._attention_backend, **options)
        return found


def _rotated(x: Tensor, rotations: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * rotations).flatten(-2).type_as(x)


class QwenImage21Family(DiffusersFamily):
    """Qwen-Image-2.1. Text: tokens of Qwen3-VL, and a mask. A token is a latent pixel; the VAE has an alpha channel."""

    pipeline_class = QwenImage21Pipeline
    network_class = QwenImage21Transformer2DModel
    components: ClassVar = {**DiffusersFamily.components, "text": ("text_encoder", "processor")}
    tokenizers: ClassVar = {"Qwen3-VL": ("processor", True)}
    original_layers: ClassVar = {
        # of ComfyUI; the other layers have diffusers' names
        ("transformer_blocks.{}.img_mlp.", "transformer_blocks.{}.img_mlp."): {"gate_up": "gate_layer proj"}
    }
    latent_pixels_per_token = 1
    side_step = 2

    def __init__(self, pipeline: Any, options: LoadOptions) -> None:
        """Wrap a pipeline; see `DiffusersFamily`.

        Raises:
            ConfigError: The checkpoint has noise levels of its own, too.
        """
        if pipeline.config.sample_sigmas:
            raise ConfigError(
                f"model.checkpoint: must have no noise levels of its own (sample_sigmas in model_index.json), which "
                f"{options.checkpoint} has, as a model of few steps; choose its base model"
            )
        network = pipeline.transformer
        if network is not None:
            network.set_attn_processor(AttentionByRow(network.config.axes_dims_rope[0] // 2))
        super().__init__(pipeline, options)

    @classmethod
    def token_count(cls, tokenizer: Any, prompt: str) -> int:
        """Tokens of a prompt in the template, without the system message, which the network does not get."""
        template = cls.pipeline_class(None, None, None, None, None)
        message = {"role": "system", "content": [{"type": "text", "text": template.sys_prompt}]}
        start = len(tokenizer.apply_chat_template([message], return_dict=False))
        return super().token_count(tokenizer, template.prompt_template_t2i.format(prompt or " ")) - start

    @property
    def grid_limit(self) -> int | None:
        """Positions of rows and columns lie around 0, and the table of negative ones is the shorter one."""
        return 2 * _NEGATIVE_POSITIONS

    @property
    def text_limit(self) -> int | None:
        """The image has the position after the text."""
        return _POSITIONS - 1

    def text_tensors(self, prompts: Sequence[str]) -> Mapping[str, Tensor]:
        """`prompt_embeds` [B, T, E], padded with zeros, and `mask` [B, T], which is False there."""
        found, mask, _ = self._pipeline.encode_prompt(list(prompts), device=self.device)
        if mask is None:
            mask = torch.ones(found.shape[:2], device=found.device)
        more = self._options.max_sequence_length - found.shape[1]  # less than 0: the text is cut off
        return {"prompt_embeds": pad(found, (0, 0, 0, more)), "mask": pad(mask.bool(), (0, more))}

    def text_example(self, tokens: int) -> Mapping[str, Tensor]:
        """`prompt_embeds` [1, T, E] and `mask` [1, T]."""
        width = int(self.transformer.config.context_in_dim)
        return {
            "prompt_embeds": torch.zeros(1, tokens, width, dtype=self._options.dtype),
            "mask": torch.ones(1, tokens, dtype=torch.bool),
        }

    def network_output(self, network: nn.Module, x: Tensor, t: Tensor, text: Mapping[str, Tensor]) -> Tensor:
        """Velocity [B, L, D]. The network gets a place for 2 x 2 tokens of the image each, and returns text too."""
        words, tokens = text["mask"].shape[1], x.shape[1]
        output: Tensor = network(
            hidden_states=x,
            timestep=t.to(x.dtype),
            encoder_hidden_states=text["prompt_embeds"],
            encoder_hidden_states_mask=text["mask"],
            img_shapes=[[(1, self._rows, self._columns)]],
            img_mask=torch.arange(words + tokens // 4, device=x.device)[None] >= words,
            return_dict=False,
        )[0]
        return output[:, -tokens:]

    def vae_latents(self, latents: Tensor) -> Tensor:
        """Latent pixels [B, C, 1, R, K] on the VAE's scale, a video of one frame."""
        config = self._pipeline.vae.config
        mean, std = (
            torch.tensor(values, device=latents.device, dtype=latents.dtype)
            for values in (config.latents_mean, config.latents_std)
        )
        scaled: Tensor = (latents * std + mean).mT.unflatten(-1, (1, self._rows, self._columns))
        return scaled

    def decode(self, latents: Tensor) -> Tensor:
        """Images [B, 3, H, W] in [0, 1], on white where they are transparent, as the text encoder is shown images."""
        colours, alpha = super().decode(latents).split([3, 1], dim=1)
        mixed: Tensor = colours * alpha + 1 - alpha
        return mixed


FAMILY = QwenImage21Family
