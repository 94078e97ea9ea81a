"""What is traced, and what comes out: plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from chunk_grpo.families.base import TuningOptions

Element: TypeAlias = Literal["float32", "bfloat16"]
"""Floating-point type of a checkpoint, as in params.yaml."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that is described by its configurations alone.

    Attributes:
        family: `model.family`.
        name: Folder or hub id.
        configs: JSON object: content of config.json by component of the pipeline.
    """

    family: str
    name: str
    configs: str


@dataclass(frozen=True)
class Traced:
    """What is traced: velocities of some images.

    Attributes:
        checkpoint: Checkpoint.
        element: Its floating-point type.
        height: Image height in pixels.
        width: Image width in pixels.
        tokens: Text tokens of a prompt, `model.max_sequence_length`.
        images: Images, or (sample, step) items, of a velocity.
        cfg_scale: Scale of classifier-free guidance; 1: none.
        cfg_passes: Passes of a guided velocity.
        tuning: How the network is trained; None: it is frozen, as loaded.
        gathers: Whether the weights of a pass are gathered in `element`; else they are as training holds them.
        wide_norms: Whether autocast keeps norms in float32, as on a GPU; a CPU's leaves them in bfloat16.
    """

    checkpoint: Checkpoint
    element: Element
    height: int
    width: int
    tokens: int
    images: int = 1
    cfg_scale: float = 1.0
    cfg_passes: Literal[1, 2] = 1
    tuning: TuningOptions | None = None
    gathers: bool = False
    wide_norms: bool = True


@dataclass(frozen=True)
class UnitSizes:
    """Equal blocks that are gathered one by one.

    Attributes:
        weights: Weights of one.
        count: Number of them.
    """

    weights: int
    count: int


@dataclass(frozen=True)
class NetworkSizes:
    """Sizes of a velocity network.

    Attributes:
        latent_shape: (L, D) of the packed latents of an image.
        text_tokens: Rows of the longest text tensor of a prompt; 0 if there is none.
        text_bytes: Bytes of all text tensors of a prompt.
        weights: Weights, without an adapter.
        trained_weights: Trained weights: all, or the adapter's; 0 if it is frozen.
        trained_rows: Trained values in matrices of at least 4096 values, by length of a row (all dimensions but the
            first).
        buffer_bytes: Bytes of constant tensors, such as a table of positions.
        units: Blocks by kind, without an adapter; a kind bears the name of its first block.
    """

    latent_shape: tuple[int, int]
    text_tokens: int
    text_bytes: int
    weights: int
    trained_weights: int
    trained_rows: Mapping[int, int]
    buffer_bytes: int
    units: Mapping[str, UnitSizes]

    @property
    def outer_weights(self) -> int:
        """Weights outside the blocks."""
        return self.weights - sum(unit.count * unit.weights for unit in self.units.values())


@dataclass(frozen=True)
class PassSizes:
    """Operations and activations of a pass; a multiply-add counts as two operations, others are not counted.

    Attributes:
        forward: Operations of the forward pass.
        backward: Operations of the backward pass, without recomputation.
        recomputed: Operations of gradient checkpointing.
        between: Bytes between two blocks of the forward pass.
        outside: Most bytes while no block runs.
        units: Most bytes while a block runs, forward or backward, by kind.
        scores: Most elements of a tensor of attention scores, which fused kernels do not make.
    """

    forward: float
    backward: float
    recomputed: float
    between: int
    outside: int
    units: Mapping[str, int]
    scores: int

    @property
    def peak(self) -> int:
        """Most bytes at all."""
        return max(self.outside, *self.units.values()) if self.units else self.outside


@dataclass(frozen=True)
class Decoding:
    """Decoding of images.

    Attributes:
        flop: Operations.
        bytes: Most bytes beyond weights and latents.
    """

    flop: float
    bytes: int


@dataclass(frozen=True)
class TextSizes:
    """Text encoders.

    Attributes:
        weights: Weights of all of them.
        embeddings: Weights of their tables of embeddings, which take no products.
    """

    weights: int
    embeddings: int
