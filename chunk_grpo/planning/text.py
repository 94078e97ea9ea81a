"""Weights and operations of FLUX's two text encoders, CLIP and T5, from their config.json alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Clip:
    """Sizes of a CLIPTextModel.

    Attributes:
        width: Channels.
        hidden: Hidden channels of the MLP.
        layers: Layers.
        vocabulary: Tokens of the vocabulary.
        positions: Tokens of a prompt; always all of them are encoded.
    """

    width: int
    hidden: int
    layers: int
    vocabulary: int
    positions: int

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Clip:
        """Read text_encoder/config.json; KeyError if a key is missing."""
        return cls(
            config["hidden_size"],
            config["intermediate_size"],
            config["num_hidden_layers"],
            config["vocab_size"],
            config["max_position_embeddings"],
        )

    @property
    def weights(self) -> int:
        """Embeddings; 4 products, an MLP and two norms a layer, all with bias; the last norm."""
        w, h = self.width, self.hidden
        layer = 4 * (w * w + w) + (w * h + h) + (h * w + w) + 4 * w
        return (self.vocabulary + self.positions) * w + self.layers * layer + 2 * w

    @property
    def flop(self) -> float:
        """Operations a prompt: 2 * tokens * (4 w^2 + 2 w h) a layer, and attention 4 tokens^2 w."""
        w, n = self.width, self.positions
        return float(self.layers * (2 * n * (4 * w * w + 2 * w * self.hidden) + 4 * n * n * w))


@dataclass(frozen=True)
class T5:
    """Sizes of a T5EncoderModel.

    Attributes:
        width: Channels, E.
        inner: Channels of all heads together.
        heads: Attention heads.
        hidden: Hidden channels of the MLP.
        layers: Layers.
        vocabulary: Tokens of the vocabulary.
        buckets: Buckets of relative positions.
        is_gated: Whether the MLP has a gate, a third product.
    """

    width: int
    inner: int
    heads: int
    hidden: int
    layers: int
    vocabulary: int
    buckets: int
    is_gated: bool

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> T5:
        """Read text_encoder_2/config.json; KeyError if a key is missing."""
        return cls(
            width=config["d_model"],
            inner=config["d_kv"] * config["num_heads"],
            heads=config["num_heads"],
            hidden=config["d_ff"],
            layers=config["num_layers"],
            vocabulary=config["vocab_size"],
            buckets=config["relative_attention_num_buckets"],
            is_gated=str(config["feed_forward_proj"]).startswith("gated"),
        )

    @property
    def _products(self) -> int:
        """Multiply-adds a token and layer: queries, keys, values, output, and the MLP."""
        return 4 * self.width * self.inner + (2 + self.is_gated) * self.width * self.hidden

    @property
    def weights(self) -> int:
        """Embeddings; products without bias and two norms a layer; position bias of the first layer; the last norm."""
        layers = self.layers * (self._products + 2 * self.width)
        return self.vocabulary * self.width + layers + self.buckets * self.heads + self.width

    def flop(self, tokens: int) -> float:
        """Operations a prompt: 2 * tokens * products a layer, and attention 4 tokens^2 * inner."""
        return float(self.layers * (2 * tokens * self._products + 4 * tokens**2 * self.inner))
