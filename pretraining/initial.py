"""Step 3: an untrained velocity network, and the two remaining files of the pipeline's folder.

`python -m pretraining.initial TOY`.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any, TypeAlias

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, FluxTransformer2DModel, SD3Transformer2DModel
from torch import nn

from chunk_grpo.families.base import LoadOptions
from chunk_grpo.families.models.flux import FluxFamily
from chunk_grpo.seeding import derive_seed
from chunk_grpo.shapes.prompts import all_prompts
from chunk_grpo.shapes.scene import SIZE
from pretraining.toys import FLUX, KONTEXT, SD3, SHIPPED, Toy, command_line, load_toy

PATCH = 2
Network: TypeAlias = FluxTransformer2DModel | SD3Transformer2DModel
COMPONENTS: dict[str, dict[str, list[str]]] = {
    FLUX: {
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
        "text_encoder": ["transformers", "CLIPTextModel"],
        "text_encoder_2": ["transformers", "T5EncoderModel"],
        "tokenizer": ["transformers", "CLIPTokenizer"],
        "tokenizer_2": ["transformers", "T5TokenizerFast"],
        "transformer": ["diffusers", "FluxTransformer2DModel"],
        "vae": ["diffusers", "AutoencoderKL"],
    },
    SD3: {
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
        "text_encoder": ["transformers", "CLIPTextModelWithProjection"],
        "text_encoder_2": ["transformers", "CLIPTextModelWithProjection"],
        "text_encoder_3": ["transformers", "T5EncoderModel"],
        "tokenizer": ["transformers", "CLIPTokenizer"],
        "tokenizer_2": ["transformers", "CLIPTokenizer"],
        "tokenizer_3": ["transformers", "T5TokenizerFast"],
        "transformer": ["diffusers", "SD3Transformer2DModel"],
        "vae": ["diffusers", "AutoencoderKL"],
    },
}
COMPONENTS[KONTEXT] = COMPONENTS[FLUX]


def save_network(network: Network, folder: Path) -> None:
    """Write the network in float16, without the name of its source folder in the configuration."""
    copy.deepcopy(network).half().save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config.pop("_name_or_path", None)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def build(toy: Toy) -> Network:
    """Build a network with zero modulations and output, so that every block starts as the identity.

    The toy that edits starts from the toy FLUX, which draws the same things.
    """
    if toy.name == KONTEXT:
        return _shipped()
    network: Network = _flux(toy.params) if toy.name == FLUX else _sd3(toy.params)
    for module in network.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)
    modulations = [block.norm1.linear for block in network.transformer_blocks]
    modulations += [block.norm1_context.linear for block in network.transformer_blocks]
    modulations += [block.norm.linear for block in getattr(network, "single_transformer_blocks", ())]
    for layer in [*modulations, network.norm_out.linear, network.proj_out]:
        nn.init.zeros_(layer.weight)
    return network


def _flux(params: dict[str, Any]) -> FluxTransformer2DModel:
    settings, text = params["transformer"], params["text"]
    return FluxTransformer2DModel(
        in_channels=params["vae"]["latent_channels"] * PATCH**2,
        num_layers=settings["double_blocks"],
        num_single_layers=settings["single_blocks"],
        attention_head_dim=settings["head_dim"],
        num_attention_heads=settings["heads"],
        joint_attention_dim=text["hidden_size"],
        pooled_projection_dim=text["hidden_size"],
        guidance_embeds=True,
        axes_dims_rope=tuple(settings["rope_axes"]),
    )


@torch.no_grad()
def _shipped() -> FluxTransformer2DModel:
    """The shipped toy FLUX's network, for other texts: its pooled text vector starts as the mean of all captions.

    Other pooled vectors would throw the modulations, which hardly depend on captions, out of the range that they know.
    """
    family = FluxFamily.load(LoadOptions(str(SHIPPED), height=SIZE, width=SIZE, max_sequence_length=8))
    network: FluxTransformer2DModel = family.transformer
    embedder = network.time_text_embed.text_embedder
    mean = embedder(family.encode([spec.prompt for spec in all_prompts()])["pooled"]).mean(dim=0)
    embedder.linear_2.weight.zero_()
    embedder.linear_2.bias.copy_(mean)
    return network


def _sd3(params: dict[str, Any]) -> SD3Transformer2DModel:
    """SD3.5's kind: normalised queries and keys, and a second attention of the image alone in the first blocks."""
    settings, text, channels = params["transformer"], params["text"], params["vae"]["latent_channels"]
    side = SIZE // 2 ** (len(params["vae"]["channels"]) - 1)
    return SD3Transformer2DModel(
        sample_size=side,
        patch_size=PATCH,
        in_channels=channels,
        out_channels=channels,
        num_layers=settings["blocks"],
        attention_head_dim=settings["head_dim"],
        num_attention_heads=settings["heads"],
        joint_attention_dim=text["hidden_size"],
        caption_projection_dim=settings["heads"] * settings["head_dim"],
        pooled_projection_dim=2 * text["clip_hidden_size"],
        pos_embed_max_size=settings["pos_embed_max_size"],
        dual_attention_layers=tuple(range(settings["dual_blocks"])),
        qk_norm="rms_norm",
    )


def write_pipeline_index(toy: Toy) -> None:
    """Write the scheduler and the list of components of the pipeline's folder."""
    scheduler = FlowMatchEulerDiscreteScheduler(shift=toy.params["transformer"]["shift"])
    scheduler.save_pretrained(toy.checkpoint / "scheduler")
    index = {"_class_name": toy.family.pipeline_class.__name__, "_diffusers_version": "0.36.0", **COMPONENTS[toy.name]}
    (toy.checkpoint / "model_index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    chosen = load_toy(command_line(__doc__).parse_args().toy)
    torch.manual_seed(derive_seed("pretrain-start", chosen.params["seed"]))
    save_network(build(chosen), chosen.phase_folder("initial"))
    write_pipeline_index(chosen)
