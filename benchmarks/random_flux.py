"""Networks of FLUX.1-dev's sizes with random weights: in memory, and in the files of the real checkpoint.

`python -m benchmarks.random_flux FOLDER` writes such a checkpoint (34 GB; 42 s on an H200), for the preset random-flux.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel
from torch import nn
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer, T5Config, T5EncoderModel, T5TokenizerFast

from chunk_grpo.families.base import LoadOptions
from chunk_grpo.families.models.flux import FluxFamily

TOY = Path(__file__).resolve().parents[1] / "assets" / "tiny-flux"
SHARD = "5GB"
"""Largest file of weights; T5-XXL has two, as in the real checkpoint."""

VAE: Mapping[str, Any] = {
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
    "block_out_channels": [128, 256, 512, 512],
    "layers_per_block": 2,
    "latent_channels": 16,
    "use_quant_conv": False,
    "use_post_quant_conv": False,
    "scaling_factor": 0.3611,
    "shift_factor": 0.1159,
}
"""FLUX.1's."""

Module = TypeVar("Module", bound=nn.Module)


def write_random_flux(folder: Path, device: torch.device) -> None:
    """Write a FluxPipeline: FLUX.1-dev's configurations, random bfloat16 weights, the toy checkpoint's tokenizers.

    One part is in memory at a time, drawn on `device`; the largest, T5-XXL, has 9.5 GB.
    """
    clip_tokens = CLIPTokenizer.from_pretrained(TOY / "tokenizer", model_max_length=77)
    t5_tokens = T5TokenizerFast.from_pretrained(TOY / "tokenizer_2", model_max_length=512)
    makers = makers_of_parts(clip_tokens)
    with torch.device("meta"):  # without weights, for model_index.json
        parts = {name: make() for name, make in makers.items()}
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    pipeline = FluxPipeline(scheduler, tokenizer=clip_tokens, tokenizer_2=t5_tokens, **parts)
    pipeline.save_config(folder)
    for name in ("scheduler", "tokenizer", "tokenizer_2"):
        getattr(pipeline, name).save_pretrained(folder / name)
    for name, make in makers.items():
        part: Any = random_module(make, device)
        part.save_pretrained(folder / name, max_shard_size=SHARD)
        del part
        gc.collect()


def random_module(make: Callable[[], Module], device: torch.device) -> Module:
    """A module with random weights, drawn on the device in bfloat16."""
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)  # avoids a temporary float32 copy
    try:
        with device:
            return make()
    finally:
        torch.set_default_dtype(before)


def family_of(network: FluxTransformer2DModel, side: int, device: torch.device) -> FluxFamily:
    """A bfloat16 family of a network alone, without text encoders and VAE, for images of `side` x `side` pixels."""
    network.requires_grad_(False).eval()
    names = ("vae", "text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2")
    pipeline = FluxPipeline(FlowMatchEulerDiscreteScheduler(), transformer=network, **dict.fromkeys(names))
    options = LoadOptions("random weights", dtype=torch.bfloat16, height=side, width=side, device=device)
    return FluxFamily(pipeline, options)


def makers_of_parts(tokens: CLIPTokenizer) -> dict[str, Callable[[], nn.Module]]:
    """Calls that make the networks, by name of the part."""
    clip = CLIPTextConfig(
        hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12,
        projection_dim=768, vocab_size=49408,
        # The pooled vector is the output at the end token, whose number is the tokenizer's.
        bos_token_id=tokens.bos_token_id, eos_token_id=tokens.eos_token_id, pad_token_id=tokens.pad_token_id,
    )  # fmt: skip
    t5 = T5Config(
        d_model=4096, d_ff=10240, d_kv=64, num_layers=24, num_heads=64, feed_forward_proj="gated-gelu",
        vocab_size=32128,
    )  # fmt: skip
    return {
        "vae": lambda: AutoencoderKL(**VAE),
        "text_encoder": lambda: CLIPTextModel(clip),
        "text_encoder_2": lambda: T5EncoderModel(t5),
        "transformer": lambda: FluxTransformer2DModel(guidance_embeds=True),
    }


if __name__ == "__main__":
    write_random_flux(Path(sys.argv[1]), torch.device("cuda" if torch.cuda.is_available() else "cpu"))
