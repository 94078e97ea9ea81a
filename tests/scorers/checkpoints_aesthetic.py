"""A small random sac+logos+ava1-l14-linearMSE.pth, in the authors' names and widths but for the input's."""

from __future__ import annotations

from pathlib import Path

import torch

LAYERS = {0: 1024, 2: 128, 4: 64, 6: 16, 7: 1}
"""Number of each linear layer to its width."""


def make_aesthetic(folder: Path, seed: int = 0, width: int = 24) -> Path:
    """Write the file; `width` is of the image embeddings: 24 is `checkpoints_clip.make_clip`'s, 768 CLIP ViT-L/14's."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for number, wide in LAYERS.items():
        noise = torch.randn(wide, width, generator=generator)
        weights[f"layers.{number}.weight"] = 2 * noise * width**-0.5
        weights[f"layers.{number}.bias"] = 0.3 * torch.randn(wide, generator=generator)
        width = wide
    torch.save(weights, folder / "sac+logos+ava1-l14-linearMSE.pth")
    return folder
