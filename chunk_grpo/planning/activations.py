"""Memory of a pass of the transformer beyond weights and gradients.

The unit is one tensor of the network's width: images * n * D * bytes of an element. How many units a block keeps for
its backward pass follows from its operations in diffusers; the constants were read off torch's allocations with fake
tensors at FLUX.1-dev's size, and tests/planning/test_activations.py compares them again. The attention is a fused
kernel that keeps no scores. A network without single blocks may take up to 15 % less than is said here.
"""

from __future__ import annotations

from dataclasses import dataclass

from chunk_grpo.planning.transformer import Adapter, Sequence2D, Transformer, Tuning

EVALUATION_DOUBLE_UNITS, EVALUATION_SINGLE_UNITS = 12.9, 17.35
"""Largest number of live units while a block runs without gradients: its MLP's tensors, and the two streams."""

DOUBLE_UNITS, SINGLE_UNITS, ENDS_UNITS = 29.05, 25.05, 3.1
"""Units that a block keeps for its backward pass, and units kept outside the blocks (embedded image and text, the last
norm, rotations), all weights trained. One of a double block's units is a copy that a single image does not need."""

WORK_UNITS = 3.7
"""Units that live for a moment when the backward pass begins, all weights trained."""

AGAIN_UNITS = 28.3
"""Units of a block that is computed again and runs backward, of either kind, all weights trained."""

FROZEN_DOUBLE_UNITS, FROZEN_SINGLE_UNITS, ADAPTER_WORK_UNITS = 14.1, 13.05, 12.6
"""The same with frozen weights, whose layers keep no inputs, and with an adapter, whose float32 inputs and outputs live
for a moment beside those of the frozen layer."""

FROZEN_AGAIN_DOUBLE_UNITS, FROZEN_AGAIN_SINGLE_UNITS = 5.9, 14.3
"""Units beside those of a block with an adapter that is computed again and runs backward."""


@dataclass(frozen=True)
class Pass:
    """Sizes of one pass.

    Attributes:
        images: Images, or (sample, step) items, in the pass.
        tokens: Tokens of an image and its prompt.
        element: Bytes of an element of the activations.
    """

    images: int
    tokens: Sequence2D
    element: int

    def unit(self, network: Transformer) -> float:
        """Bytes of one tensor of the network's width."""
        return float(self.images * self.tokens.both * network.width * self.element)


@dataclass(frozen=True)
class Peak:
    """Largest memory at two kinds of places.

    Attributes:
        at_double: Bytes while a double block runs (backward, if there is a backward pass); 0 without such blocks.
        at_single: Bytes while a single block runs.
    """

    at_double: float
    at_single: float

    @property
    def bytes(self) -> float:
        """The larger one."""
        return max(self.at_double, self.at_single)


def evaluation_peak(network: Transformer, one: Pass) -> Peak:
    """Activations of a forward pass without gradients: EVALUATION_..._UNITS * unit."""
    unit = one.unit(network)
    return Peak(
        EVALUATION_DOUBLE_UNITS * unit if network.double_blocks else 0.0,
        EVALUATION_SINGLE_UNITS * unit if network.single_blocks else 0.0,
    )


def adapter_units(adapter: Adapter, network: Transformer, one: Pass) -> tuple[float, float]:
    """Units that an adapter keeps in a double and in a single block.

    Each adapted layer keeps its input as float32 (peft casts it for each layer) and the product with A:
    4 bytes * rows * (inputs + rank).
    """
    kept = {"transformer_blocks": 0.0, "single_transformer_blocks": 0.0}
    for layer in adapter.layers:
        place = layer.name.partition(".")[0]
        if place in kept:
            share = one.tokens.of(layer.tokens) / one.tokens.both
            kept[place] += share * 4 / one.element * (layer.inputs + adapter.rank) / network.width
    return kept["transformer_blocks"], kept["single_transformer_blocks"]


def training_peak(tuning: Tuning, one: Pass) -> Peak:
    """Activations at the peak of a forward and backward pass.

    Without checkpointing all blocks' units are alive when the backward pass begins. With it only the input of each
    block is (one unit), and the block that runs backward has its own units once more; the last single block comes
    first, when all inputs are alive. The gradient of one weight, in the network's type, comes on top where all weights
    are trained.
    """
    network, unit = tuning.network, one.unit(tuning.network)
    doubles, singles = network.double_blocks, network.single_blocks
    if tuning.adapter is None:
        double, single, ends, work = DOUBLE_UNITS - (one.images == 1), SINGLE_UNITS, ENDS_UNITS, WORK_UNITS
        again = ENDS_UNITS + AGAIN_UNITS, ENDS_UNITS + AGAIN_UNITS
        gradient = float(network.largest_weight * one.element)
    else:
        more_double, more_single = adapter_units(tuning.adapter, network, one)
        double, single = FROZEN_DOUBLE_UNITS + more_double, FROZEN_SINGLE_UNITS + more_single
        ends, work, gradient = 0.0, ADAPTER_WORK_UNITS, 0.0
        again = double + FROZEN_AGAIN_DOUBLE_UNITS, single + FROZEN_AGAIN_SINGLE_UNITS
    if not tuning.checkpointing:
        kept = ends + doubles * double + singles * single + work
        return Peak((kept - singles * single) * unit + gradient, kept * unit + gradient)
    return Peak(
        (doubles + again[0]) * unit + gradient if doubles else 0.0,
        (doubles + singles + again[1]) * unit + gradient if singles else 0.0,
    )
