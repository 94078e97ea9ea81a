"""Memory of a pass of the transformer beyond weights and gradients.

The unit is one tensor of the network's width: images * n * D * bytes of an element. How many units a block keeps for
its backward pass follows from its operations in diffusers; the constants were read off torch's allocations with fake
tensors at FLUX.1-dev's size, and tests/planning/test_activations.py compares them again. The attention is a fused
kernel that keeps no scores. A network without single blocks may take up to 15 % less than is said here.
"""

from __future__ import annotations

from dataclasses import dataclass

from chunk_grpo.planning.transformer import Adapter, Sequence2D, Transformer, Tuning


@dataclass(frozen=True)
class Units:
    """Live units at the peak of a pass.

    Attributes:
        evaluation_double: While a double block runs without gradients: its MLP's tensors, and the two streams.
        evaluation_single: While a single block does.
        double: Kept by a double block for its backward pass.
        single: Kept by a single block.
        begin: Outside the blocks, and for a moment, when the backward pass begins.
        again_double: Recomputation and backward pass of a double block, with the parts outside the blocks.
        again_single: The same for a single block.
        has_gradient: Whether the gradient of one weight is there at the peak.
    """

    evaluation_double: float
    evaluation_single: float
    double: float
    single: float
    begin: float
    again_double: float
    again_single: float
    has_gradient: bool


PLAIN = Units(12.9, 17.35, 29.05, 25.05, 6.8, 31.4, 31.4, True)
"""All weights trained, in the checkpoint's type."""

AUTOCAST = Units(17.4, 28.4, 35.05, 30.05, 22.3, 41.0, 52.4, False)
"""All weights trained, under a GPU's autocast: norms and what follows them are float32 (ATen/autocast_mode.h lists
layer_norm and rms_norm), queries and keys too, and each product casts its input anew."""

ADAPTER = Units(12.9, 17.35, 14.1, 13.05, 12.6, 14.1 + 5.9, 13.05 + 14.3, False)
"""Frozen weights, whose layers keep no inputs. `adapter_units` adds the adapter's activations, among them its temporary
float32 inputs and outputs."""


def units_of(tuning: Tuning, *, autocasts: bool) -> Units:
    """The units of a way to train."""
    if tuning.adapter is not None:
        return ADAPTER
    return AUTOCAST if autocasts else PLAIN


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


def evaluation_peak(network: Transformer, one: Pass, units: Units = PLAIN) -> Peak:
    """Activations of a forward pass without gradients: units of the block * unit."""
    unit = one.unit(network)
    return Peak(
        units.evaluation_double * unit if network.double_blocks else 0.0,
        units.evaluation_single * unit if network.single_blocks else 0.0,
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


def training_peak(tuning: Tuning, one: Pass, *, autocasts: bool = False) -> Peak:
    """Activations at the peak of a forward and backward pass.

    Without checkpointing all blocks' units are alive when the backward pass begins. With it only the input of each
    block is (one unit), and the block that runs backward has its own units once more; the last single block comes
    first, when all inputs are alive. The gradient of one weight may come on top.

    Args:
        tuning: How the transformer is trained.
        one: Sizes of the pass.
        autocasts: Whether it runs under autocast.
    """
    network, unit, units = tuning.network, one.unit(tuning.network), units_of(tuning, autocasts=autocasts)
    doubles, singles = network.double_blocks, network.single_blocks
    more_double, more_single = (
        (0.0, 0.0) if tuning.adapter is None else adapter_units(tuning.adapter, network, one)
    )
    gradient = float(network.largest_weight * one.element) if units.has_gradient else 0.0
    if not tuning.checkpointing:
        # One of a plain double block's units is a copy that a single image does not need.
        double = units.double + more_double - (units is PLAIN and one.images == 1)
        of_singles = singles * (units.single + more_single)
        kept = units.begin + doubles * double + of_singles
        return Peak((kept - of_singles) * unit + gradient, kept * unit + gradient)
    at_double = doubles + units.again_double + more_double
    at_single = doubles + singles + units.again_single + more_single
    return Peak(
        at_double * unit + gradient if doubles else 0.0,
        at_single * unit + gradient if singles else 0.0,
    )
