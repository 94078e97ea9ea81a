"""A small random HPS_v2.1_compressed.pt: a ViT of open_clip with HPSv2's names and widths of heads."""

from __future__ import annotations

from pathlib import Path

import torch

IMAGE, PATCH = 32, 8
WIDE, TEXT, JOINT, LAYERS = 160, 128, 48, 2


def shapes(vocabulary: int) -> dict[str, tuple[int, ...]]:
    """Name to shape, as in open_clip's class CLIP."""
    found: dict[str, tuple[int, ...]] = {
        "visual.class_embedding": (WIDE,),
        "visual.positional_embedding": ((IMAGE // PATCH) ** 2 + 1, WIDE),
        "visual.proj": (WIDE, JOINT),
        "visual.conv1.weight": (WIDE, 3, PATCH, PATCH),
        "positional_embedding": (77, TEXT),
        "text_projection": (TEXT, JOINT),
        "token_embedding.weight": (vocabulary, TEXT),
        "logit_scale": (),
    }
    norms = {"visual.ln_pre": WIDE, "visual.ln_post": WIDE, "ln_final": TEXT}
    for prefix, width in (("visual.", WIDE), ("", TEXT)):
        for number in range(LAYERS):
            block = f"{prefix}transformer.resblocks.{number}"
            norms |= {f"{block}.ln_1": width, f"{block}.ln_2": width}
            for name, (out, into) in {
                "attn.in_proj_": (3 * width, width),
                "attn.out_proj.": (width, width),
                "mlp.c_fc.": (4 * width, width),
                "mlp.c_proj.": (width, 4 * width),
            }.items():
                found |= {f"{block}.{name}weight": (out, into), f"{block}.{name}bias": (out,)}
    return found | {f"{name}.{part}": (width,) for name, width in norms.items() for part in ("weight", "bias")}


def make_hpsv2(folder: Path, seed: int = 0, vocabulary: int = 520) -> Path:
    """Write the file; its weights are large enough that each moves the score.

    The default number of tokens is `checkpoints_clip.small_vocabulary`'s.
    """
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in shapes(vocabulary).items():
        noise = torch.randn(shape, generator=generator)
        if name == "logit_scale":
            weights[name] = torch.tensor(4.6052)
        elif len(shape) > 1 and "embedding" not in name:
            fan_in = shape[0] if name in ("visual.proj", "text_projection") else noise[0].numel()
            weights[name] = noise * fan_in**-0.5
        elif ".ln_" in f".{name}" and name.endswith("weight"):
            weights[name] = 1 + 0.2 * noise
        else:
            weights[name] = 0.3 * noise
    torch.save({"state_dict": weights}, folder / "HPS_v2.1_compressed.pt")
    return folder
