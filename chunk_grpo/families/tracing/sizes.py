"""What is traced, and what comes out: plain values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from chunk_grpo.config.models import BasePrecision
from chunk_grpo.families.base import TuningOptions

Element: TypeAlias = Literal["float32", "bfloat16"]
"""Floating-point type of a checkpoint, as in params.yaml."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that is described by its configurations alone."""

    family: str
    """`model.family`."""
    name: str
    """Folder or hub id."""
    configs: str
    """JSON object: content of config.json by component of the pipeline."""


@dataclass(frozen=True)
class Traced:
    """What is traced: velocities of some images."""

    checkpoint: Checkpoint
    """Checkpoint."""
    element: Element
    """Its floating-point type."""
    height: int
    """Image height in pixels."""
    width: int
    """Image width in pixels."""
    tokens: int
    """Text tokens of a prompt, `model.max_sequence_length`."""
    source: tuple[int, int] | None = None
    """Height and width in pixels of the picture that a prompt edits; None: it draws a new image."""
    images: int = 1
    """Images, or (sample, step) items, of a velocity."""
    cfg_scale: float = 1.0
    """Scale of classifier-free guidance; 1: none."""
    cfg_passes: Literal[1, 2] = 1
    """Passes of a guided velocity."""
    tuning: TuningOptions | None = None
    """How the network is trained; None: it is frozen, as loaded."""
    precision: BasePrecision | None = None
    """Precision of the quantised layers; None: `element`."""
    gathers: bool = False
    """Whether the weights of a pass are gathered in `element`; else they are as training holds them."""
    wide_norms: bool = True
    """Whether autocast keeps norms in float32, as on a GPU; a CPU's leaves them in bfloat16."""


@dataclass(frozen=True)
class UnitSizes:
    """Equal blocks that are gathered one by one."""

    weights: int
    """Weights of one."""
    count: int
    """Number of them."""


@dataclass(frozen=True)
class NetworkSizes:
    """Sizes of a velocity network."""

    latent_shape: tuple[int, int]
    """(L, D) of the packed latents of an image."""
    text_tokens: int
    """Rows of the longest text tensor of a prompt, and latent tokens of the picture that it edits."""
    text_bytes: int
    """Bytes of all tensors of a prompt."""
    weights: int
    """Weights, without an adapter."""
    base_bytes: int
    """Their bytes as they are loaded, quantised or not."""
    trained_weights: int
    """Trained weights: all, or the adapter's; 0 if it is frozen."""
    trained_rows: Mapping[int, int]
    """Trained values in matrices of at least 4096 values, by length of a row (all dimensions but the first)."""
    buffer_bytes: int
    """Bytes of constant tensors, such as a table of positions."""
    units: Mapping[str, UnitSizes]
    """Blocks by kind, without an adapter; a kind bears the name of its first block."""

    @property
    def outer_weights(self) -> int:
        """Weights outside the blocks."""
        return self.weights - sum(unit.count * unit.weights for unit in self.units.values())


@dataclass(frozen=True)
class PassSizes:
    """Operations and activations of a pass; a multiply-add counts as two operations, others are not counted."""

    forward: float
    """Operations of the forward pass."""
    backward: float
    """Operations of the backward pass, without recomputation."""
    recomputed: float
    """Operations of gradient checkpointing."""
    between: int
    """Bytes between two blocks of the forward pass."""
    outside: int
    """Most bytes while no block runs."""
    units: Mapping[str, int]
    """Most bytes while a block runs, forward or backward, by kind."""
    scores: int
    """Most elements of a tensor of attention scores, which fused kernels do not make."""

    def mixed(self, other: PassSizes, share: float, blocks: int) -> PassSizes:
        """Sizes if this share of the blocks is as in the other pass, which recomputes all of them.

        Args:
            other: The same pass with gradient checkpointing.
            share: Share of the recomputed blocks.
            blocks: Number of blocks. While one is recomputed, its activations are stored beside those that are kept.
        """
        one = (self.peak - other.peak) / max(1, blocks - 1)

        def between(first: float, second: float) -> float:
            return first + share * (second - first)

        return replace(
            self,
            recomputed=between(self.recomputed, other.recomputed),
            between=math.ceil(between(self.between, other.between)),
            outside=math.ceil(between(self.outside, other.outside)),
            units={
                kind: math.ceil(between(size, other.units[kind]) + (1 - share) * one)
                for kind, size in self.units.items()
            },
        )

    @property
    def peak(self) -> int:
        """Most bytes at all."""
        return max(self.outside, *self.units.values()) if self.units else self.outside


@dataclass(frozen=True)
class Decoding:
    """Decoding of images."""

    flop: float
    """Operations."""
    bytes: int
    """Most bytes beyond weights and latents."""


@dataclass(frozen=True)
class TextSizes:
    """Text encoders."""

    weights: int
    """Weights of all of them."""
    embeddings: int
    """Weights of their tables of embeddings, which take no products."""
