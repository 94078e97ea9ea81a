"""Z-Image: folders and hub ids with a diffusers ZImagePipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from diffusers import ZImagePipeline, ZImageTransformer2DModel
from diffusers.models.transformers.transformer_z_image import SEQ_MULTI_OF
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from chunk_grpo.families.diffusers_family import DiffusersFamily
from chunk_grpo.families.packing import to_pixels, to_tokens


class ZImageFamily(DiffusersFamily):
    """Z-Image. Text: tokens of Qwen3. Positions of the image depend on the text's length, so padding is cut off."""

    pipeline_class = ZImagePipeline
    network_class = ZImageTransformer2DModel
    tokenizers: ClassVar = {"Qwen3": ("tokenizer", True)}
    original_layers: ClassVar = {
        ("layers.{}.attention.", "layers.{}.attention."): {"qkv": "to_q to_k to_v", "out": "to_out.0"},
        ("noise_refiner.{}.attention.", "noise_refiner.{}.attention."): {"qkv": "to_q to_k to_v", "out": "to_out.0"},
        ("context_refiner.{}.attention.", "context_refiner.{}.attention."): {
            "qkv": "to_q to_k to_v",
            "out": "to_out.0",
        },
        ("", ""): {
            "x_embedder": "all_x_embedder.2-1",
            "final_layer.linear": "all_final_layer.2-1.linear",
            "final_layer.adaLN_modulation.1": "all_final_layer.2-1.adaLN_modulation.1",
        },
    }

    @property
    def latent_shape(self) -> tuple[int, int]:
        """(L, D): a token has the channels of 2 x 2 latent pixels."""
        return self._rows * self._columns, 4 * int(self.transformer.config.in_channels)

    @property
    def grid_limit(self) -> int | None:
        """Tables of positions of the network, for rows and for columns."""
        return int(min(self.transformer.config.axes_lens[1:]))

    @property
    def text_limit(self) -> int | None:
        """The text, filled up to whole groups, has positions from 1, and the image the next one."""
        group = int(SEQ_MULTI_OF)
        return (int(self.transformer.config.axes_lens[0]) - 2) // group * group

    @classmethod
    def token_count(cls, tokenizer: Any, prompt: str) -> int:
        """Tokens of a prompt in the chat template."""
        messages = [{"role": "user", "content": prompt}]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, enable_thinking=True)
        return super().token_count(tokenizer, text)

    def text_tensors(self, prompts: Sequence[str]) -> Mapping[str, Tensor]:
        """`prompt_embeds` [B, T, E], padded with zeros, and `length` [B], int64."""
        limit = self._options.max_sequence_length
        found, _ = self._pipeline.encode_prompt(
            list(prompts), device=self.device, do_classifier_free_guidance=False, max_sequence_length=limit
        )
        longest = found[0].new_zeros(limit, found[0].shape[1])
        return {
            "prompt_embeds": pad_sequence([*found, longest], batch_first=True)[:-1],
            "length": torch.tensor([len(rows) for rows in found], device=self.device),
        }

    def text_example(self, tokens: int) -> Mapping[str, Tensor]:
        """`prompt_embeds` [1, T, E] and `length` [1]."""
        width = int(self.transformer.config.cap_feat_dim)
        return {
            "prompt_embeds": torch.zeros(1, tokens, width, dtype=self._options.dtype),
            "length": torch.tensor([tokens]),
        }

    def network_output(self, network: nn.Module, x: Tensor, t: Tensor, text: Mapping[str, Tensor]) -> Tensor:
        """Velocity [B, L, D]. The network's time is 1 - t, and its output points from noise to data."""
        words = [rows[:length] for rows, length in zip(text["prompt_embeds"], text["length"].tolist(), strict=True)]
        images = list(to_pixels(x, self._rows).unsqueeze(2).unbind())
        output: list[Tensor] = network(images, 1 - t, words, return_dict=False)[0]
        return -to_tokens(torch.stack(output).squeeze(2))


FAMILY = ZImageFamily
