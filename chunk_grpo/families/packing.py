"""Latent pixels as tokens of 2 x 2: channels in the order (C, row, column) of diffusers' FluxPipeline."""

from __future__ import annotations

from torch import Tensor


def to_tokens(pixels: Tensor) -> Tensor:
    """Tokens [B, R K, 4 C] of latent pixels [B, C, 2 R, 2 K]."""
    B, C, height, width = pixels.shape
    parts = pixels.reshape(B, C, height // 2, 2, width // 2, 2)
    return parts.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


def to_pixels(tokens: Tensor, rows: int) -> Tensor:
    """Latent pixels [B, C, 2 R, 2 K] of tokens [B, R K, 4 C].

    Args:
        tokens: Tokens.
        rows: Number of rows of tokens, R.
    """
    B, L, D = tokens.shape
    parts = tokens.reshape(B, rows, L // rows, D // 4, 2, 2)
    return parts.permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3)
