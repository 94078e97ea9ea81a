"""Floating-point operations of a FLUX transformer, counted by formula.

A multiply-add counts as two operations. With T = image + text tokens and width d:

    linear maps of a double block    24 d^2 per token: 2 (3 d^2 queries, keys, values + d^2 out + 8 d^2 MLP)
    linear maps of a single block    24 d^2 per token: 2 (3 d^2 queries, keys, values + 4 d^2 MLP in + 5 d^2 out)
    attention of either block        4 T^2 d: queries with keys, and weights with values

plus small terms: embeddings, modulations (per image, not per token) and output. Norms, gates and activations are not
counted. The width of an attention head does not matter. tests/benchmarks/test_flops.py compares this with
torch's count on a small network, and with the 37.3 TFLOP of a forward pass of FLUX.1-dev at 720 x 720.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Work = Literal["forward", "full, checkpointing", "LoRA, checkpointing", "LoRA"]
"""The rollout's forward pass, or an update's forward and backward pass, by trained weights and by whether activations
are recomputed."""


@dataclass(frozen=True)
class Shape:
    """Dimensions of a FluxTransformer2DModel that determine its operations.

    Attributes:
        double_blocks: `num_layers`.
        single_blocks: `num_single_layers`.
        heads: `num_attention_heads`.
        head_width: `attention_head_dim`.
        channels: `in_channels` of a latent token.
        text_width: `joint_attention_dim` of a text token.
        pooled_width: `pooled_projection_dim`.
        image_tokens: L.
        text_tokens: Tokens of the longer text encoder.
    """

    double_blocks: int
    single_blocks: int
    heads: int
    head_width: int
    channels: int
    text_width: int
    pooled_width: int
    image_tokens: int
    text_tokens: int

    @property
    def width(self) -> int:
        """Width d of the network."""
        return self.heads * self.head_width


@dataclass(frozen=True)
class Flops:
    """Operations of a forward pass of one image, for linear maps and for attention."""

    linear: int
    attention: int

    @property
    def forward(self) -> int:
        """Operations of the forward pass."""
        return self.linear + self.attention


def forward_flops(shape: Shape) -> Flops:
    """Operations of a forward pass of one image."""
    d, tokens = shape.width, shape.image_tokens + shape.text_tokens
    blocks = shape.double_blocks + shape.single_blocks
    on_tokens = 24 * d**2 * tokens * blocks
    embedding = 2 * d * (shape.channels * shape.image_tokens + shape.text_width * shape.text_tokens)
    output = 2 * d * shape.channels * shape.image_tokens
    # Time and guidance: 256 sinusoids and two maps each; pooled text: two maps.
    conditions = 2 * (2 * (256 * d + d * d) + shape.pooled_width * d + d * d)
    modulations = 2 * d**2 * (2 * 6 * shape.double_blocks + 3 * shape.single_blocks + 2)
    linear = on_tokens + embedding + output + conditions + modulations
    return Flops(linear, 4 * tokens**2 * d * blocks)


def work_flops(shape: Shape, work: Work) -> int:
    """Operations of a pass over one image, including recomputed activations.

    The backward pass of a linear map costs one forward pass for the gradient of its input, and one more for the
    gradient of its weights, which frozen weights (LoRA) do not need. Attention has no weights: its backward pass always
    costs two forward passes. The adapters' operations, about one percent, are not counted.
    """
    flops = forward_flops(shape)
    if work == "forward":
        return flops.forward
    passes = 2 if work == "full, checkpointing" else 1
    again = 0 if work == "LoRA" else flops.forward
    return flops.forward + again + passes * flops.linear + 2 * flops.attention
