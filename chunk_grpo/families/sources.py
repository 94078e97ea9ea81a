"""Source pictures, which a prompt says how to edit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from chunk_grpo.errors import ConfigError
from chunk_grpo.families.base import Picture
from chunk_grpo.families.packing import to_tokens


def as_pixels(pictures: Sequence[Picture], device: torch.device) -> Tensor:
    """Pictures [B, 3, H, W] in [-1, 1], float32, of B pictures of one size."""
    pixels = torch.from_numpy(np.stack(pictures)).to(device).permute(0, 3, 1, 2)
    return pixels.float() / 127.5 - 1


def token_grid(pixels: Tensor) -> Tensor:
    """Tokens [B, 4 C, R, K] of latent pixels [B, C, 2 R, 2 K], in rows and columns."""
    rows, columns = pixels.shape[2] // 2, pixels.shape[3] // 2
    B, _, D = (tokens := to_tokens(pixels)).shape
    return tokens.transpose(1, 2).reshape(B, D, rows, columns)


def followed(x: Tensor, source: Tensor) -> Tensor:
    """States [B, L, D] followed by the tokens of a `token_grid` [B, D, R, K], [B, L + R K, D]."""
    return torch.cat([x, source.flatten(2).transpose(1, 2)], dim=1)


def needs_pictures(name: str) -> ConfigError:
    """Error of a family, by its name or that of its module, whose prompts have no pictures and need them."""
    return ConfigError(
        f"model.family: {name.rpartition('.')[2]} only edits pictures, got prompts without; name the pictures by "
        "`picture_field` of the prompt files (docs/prompts.md), or choose a family that draws (docs/families.md)"
    )


def edits_nothing(name: str) -> ConfigError:
    """Error of a family, by its name or that of its module, that gets pictures to edit and takes none."""
    return ConfigError(
        f"model.family: {name.rpartition('.')[2]} edits no pictures; choose a family that does (docs/families.md), "
        "or prompts without pictures"
    )
