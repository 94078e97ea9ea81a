"""Regression head of ImageReward and of LAION's aesthetic predictor: linear layers without activations between them."""

from __future__ import annotations

import itertools

from torch import nn

HEAD_WIDTHS = (1024, 128, 64, 16, 1)
"""Output widths of the layers."""


def regression_head(width: int) -> nn.Sequential:
    """Layers with the indices by which both authors' files name them: 0, 2, 4, 6 and 7.

    Args:
        width: Width of the input.
    """
    linear = [nn.Linear(inputs, outputs) for inputs, outputs in itertools.pairwise((width, *HEAD_WIDTHS))]
    # Dropout is inactive in evaluation; it keeps the indices.
    dropped = [part for layer in linear[:3] for part in (layer, nn.Dropout())]
    return nn.Sequential(*dropped, *linear[3:])
