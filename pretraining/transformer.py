"""Step 3: the velocity network (FluxTransformer2DModel), by flow matching on the frozen encoders' outputs."""

from __future__ import annotations

import copy
import json
from typing import Any

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel
from torch import Tensor, nn

from chunk_grpo.core.flow import flow_matching_loss, interpolate
from chunk_grpo.families.base import Conditioning, LoadOptions
from chunk_grpo.families.flux import FluxFamily
from chunk_grpo.shapes.prompts import all_prompts
from chunk_grpo.shapes.scene import SIZE
from pretraining.common import (
    CHECKPOINT,
    FOLDER,
    Curve,
    SceneStream,
    cosine_with_warmup,
    load_params,
    pick_device,
)
from pretraining.evaluate import evaluate

PATCH = 2
DATASET_BATCH = 500


def build(settings: dict[str, Any], text: dict[str, Any], latent_channels: int) -> FluxTransformer2DModel:
    """A fresh network whose modulations and output start at zero, so that every block starts as the identity."""
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
    """The two files that make the folder a FluxPipeline: the scheduler and the list of components."""
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


@torch.no_grad()
def encode_pictures(vae: AutoencoderKL, stream: SceneStream, count: int) -> tuple[Tensor, Tensor]:
    """Normalised packed latents [count, L, D] of fresh pictures, and the index of each one's caption [count]."""
    number = {spec: index for index, spec in enumerate(all_prompts())}
    latents, captions = [], []
    for _ in range(0, count, DATASET_BATCH):
        specs, images = stream.batch(DATASET_BATCH)
        codes = vae.encode(images).latent_dist.mode()
        codes = (codes - vae.config.shift_factor) * vae.config.scaling_factor
        latents.append(FluxPipeline._pack_latents(codes, *codes.shape))
        captions += [number[spec] for spec in specs]
    return torch.cat(latents), torch.tensor(captions, device=latents[0].device)


def sample_noise_levels(count: int, shift: float, device: torch.device) -> Tensor:
    """Half uniform, half logit-normal moved towards noise by the time shift."""
    uniform = torch.rand(count, device=device)
    normal = torch.randn(count, device=device).sigmoid()
    shifted = shift * normal / (1 + (shift - 1) * normal)
    return torch.where(torch.rand(count, device=device) < 0.5, uniform, shifted)


def load_frozen_parts(params: dict[str, Any], device: torch.device) -> tuple[AutoencoderKL, Tensor, Tensor]:
    """The VAE, and both encoders' outputs for every caption: [P, N, E] and [P, F]."""
    options = LoadOptions(
        str(CHECKPOINT),
        height=SIZE,
        width=SIZE,
        max_sequence_length=params["text"]["max_length"],
        device=device,
    )
    family = FluxFamily.load(options, parts=("text",))
    captions = family.encode([spec.prompt for spec in all_prompts()])
    vae = AutoencoderKL.from_pretrained(CHECKPOINT / "vae", dtype=torch.float32).to(device)
    return vae, captions.prompt_embeds, captions.pooled


def train(params: dict[str, Any], device: torch.device) -> None:
    """Train with an exponential moving average; save and score the average at intervals."""
    settings = params["transformer"]
    torch.manual_seed(params["seed"])
    torch.set_float32_matmul_precision("high")
    build(settings, params["text"], params["vae"]["latent_channels"]).save_pretrained(
        CHECKPOINT / "transformer"
    )
    write_pipeline_index(settings)
    vae, prompt_embeds, pooled = load_frozen_parts(params, device)
    latents, captions = encode_pictures(vae, SceneStream(params["seed"] + 10, device), settings["pictures"])
    family = FluxFamily.load(
        LoadOptions(str(CHECKPOINT), height=SIZE, width=SIZE, device=device), parts=("transformer",)
    )
    network = family.transformer.train().requires_grad_(True)
    average = copy.deepcopy(network).requires_grad_(False)
    optimizer = torch.optim.AdamW(
        network.parameters(),
        settings["learning_rate"],
        betas=(0.9, 0.95),
        weight_decay=settings["weight_decay"],
        fused=True,
    )
    schedule = cosine_with_warmup(optimizer, settings["warmup_steps"], settings["steps"])
    curve = Curve(FOLDER / "work" / "curves" / "transformer.jsonl")
    mean_loss = 0.0
    for step in range(1, settings["steps"] + 1):
        rows = torch.randint(len(latents), (settings["batch_size"],), device=device)
        x0, who = latents[rows], captions[rows]
        x1, t = torch.randn_like(x0), sample_noise_levels(len(rows), settings["shift"], device)
        states = interpolate(x0, x1, t)
        velocity = family.velocity(states, t, Conditioning(prompt_embeds[who], pooled[who]))
        loss = flow_matching_loss(velocity, x0, x1)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        decay = min(settings["ema_decay"], step / (step + 100))
        torch._foreach_lerp_(list(average.parameters()), list(network.parameters()), 1 - decay)
        mean_loss += (loss.detach() - mean_loss) / min(step, 200)
        if step % settings["evaluate_every"] == 0 or step == settings["steps"]:
            copy.deepcopy(average).half().save_pretrained(CHECKPOINT / "transformer")
            curve.add(step, loss=mean_loss, **evaluate(params, settings["watch_prompts"], device))


if __name__ == "__main__":
    recipe = load_params()
    train(recipe, pick_device(recipe["device"]))
