"""Sizes of a checkpoint and its passes, read off the real classes without weights (docs/adr/0018-sizes-are-traced.md).

Networks are built from their config.json on fake tensors, which have shapes, types and lifetimes, and no values. What
comes out are plain numbers.
"""

from chunk_grpo.families.tracing.build import check_class, component_names
from chunk_grpo.families.tracing.sizes import (
    Checkpoint,
    Decoding,
    Element,
    NetworkSizes,
    PassSizes,
    TextSizes,
    Traced,
    UnitSizes,
)
from chunk_grpo.families.tracing.trace import decoding, network_sizes, pass_sizes, text_bytes, text_sizes, vae_weights

__all__ = [
    "Checkpoint",
    "Decoding",
    "Element",
    "NetworkSizes",
    "PassSizes",
    "TextSizes",
    "Traced",
    "UnitSizes",
    "check_class",
    "component_names",
    "decoding",
    "network_sizes",
    "pass_sizes",
    "text_bytes",
    "text_sizes",
    "vae_weights",
]
