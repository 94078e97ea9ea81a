"""Step 3: an untrained velocity network, and the two remaining files of the FluxPipeline folder."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, FluxTransformer2DModel
from torch import nn

from chunk_grpo.seeding import derive_seed
from pretraining.common import CHECKPOINT, FOLDER, load_params

PATCH = 2


def phase_folder(phase: str) -> Path:
    """Folder of the averaged network of a phase."""
    return FOLDER / "work" / "phases" / phase


def save_network(network: FluxTransformer2DModel, folder: Path) -> None:
    """Write the network in float16, without the name of its source folder in the configuration."""
    copy.deepcopy(network).half().save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config.pop("_name_or_path", None)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def build(settings: dict[str, Any], text: dict[str, Any], latent_channels: int) -> FluxTransformer2DModel:
    """Build a network with zero modulations and output, so that every block starts as the identity."""
    network = FluxTransformer2DModel(
        in_channels=latent_channels * PATCH**2,
        num_layers=settings["double_blocks"],
        num_single_layers=settings["single_blocks"],
        attention_head_dim=settings["head_dim"],
        num_attention_heads=settings["heads"],
        joint_attention_dim=text["hidden_size"],
        pooled_projection_dim=text["hidden_size"],
        guidance_embeds=True,
        axes_dims_rope=tuple(settings["rope_axes"]),
    )
    for module in network.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)
    modulations = [block.norm1.linear for block in network.transformer_blocks]
    modulations += [block.norm1_context.linear for block in network.transformer_blocks]
    modulations += [block.norm.linear for block in network.single_transformer_blocks]
    for layer in [*modulations, network.norm_out.linear, network.proj_out]:
        nn.init.zeros_(layer.weight)
    return network


def write_pipeline_index(settings: dict[str, Any]) -> None:
    """Write the scheduler and the list of components of the FluxPipeline folder."""
    FlowMatchEulerDiscreteScheduler(shift=settings["shift"]).save_pretrained(CHECKPOINT / "scheduler")
    components = {
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
        "text_encoder": ["transformers", "CLIPTextModel"],
        "text_encoder_2": ["transformers", "T5EncoderModel"],
        "tokenizer": ["transformers", "CLIPTokenizer"],
        "tokenizer_2": ["transformers", "T5TokenizerFast"],
        "transformer": ["diffusers", "FluxTransformer2DModel"],
        "vae": ["diffusers", "AutoencoderKL"],
    }
    index = {"_class_name": "FluxPipeline", "_diffusers_version": "0.36.0", **components}
    (CHECKPOINT / "model_index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    recipe = load_params()
    torch.manual_seed(derive_seed("pretrain-start", recipe["seed"]))
    untrained = build(recipe["transformer"], recipe["text"], recipe["vae"]["latent_channels"])
    save_network(untrained, phase_folder("initial"))
    write_pipeline_index(recipe["transformer"])
