"""Step 2: the autoencoder (AutoencoderKL, 32 px to 8 x 8 latent pixels), with scale and shift of its latents."""

from __future__ import annotations

import copy
from typing import Any

import torch
from diffusers import AutoencoderKL
from torch import Tensor

from chunk_grpo.shapes.detect import detect
from chunk_grpo.shapes.judge import exact_score
from chunk_grpo.shapes.scene import SIZE
from pretraining.common import Curve, SceneStream, cosine_with_warmup
from pretraining.toys import FLUX, Toy, load_toy


def build(settings: dict[str, Any]) -> AutoencoderKL:
    """Build an autoencoder; the last block keeps the resolution, so n widths halve it n - 1 times."""
    widths = settings["channels"]
    return AutoencoderKL(
        down_block_types=["DownEncoderBlock2D"] * len(widths),
        up_block_types=["UpDecoderBlock2D"] * len(widths),
        block_out_channels=widths,
        layers_per_block=1,
        latent_channels=settings["latent_channels"],
        norm_num_groups=4,
        sample_size=SIZE,
        mid_block_add_attention=True,
        use_quant_conv=False,
        use_post_quant_conv=False,
    )


@torch.no_grad()
def quality(vae: AutoencoderKL, stream: SceneStream, count: int) -> tuple[float, float, float]:
    """PSNR in dB of reconstructions, and the exact score of reconstructions and of originals."""
    specs, images, _ = stream.batch(count)
    decoded = vae.decode(vae.encode(images).latent_dist.mode()).sample.clamp(-1, 1)
    psnr = -10 * torch.log10(((decoded - images) / 2).square().mean())

    def score(batch: Tensor) -> float:
        pictures = (batch / 2 + 0.5).float().cpu().numpy()
        return sum(exact_score(detect(p), s) for p, s in zip(pictures, specs, strict=True)) / count

    return float(psnr), score(decoded), score(images)


@torch.no_grad()
def set_scale(vae: AutoencoderKL, stream: SceneStream) -> None:
    """Store the shift and scale that give the latents mean 0 and standard deviation 1."""
    latents = torch.cat([vae.encode(stream.batch(256).images).latent_dist.mode() for _ in range(8)])
    vae.register_to_config(shift_factor=float(latents.mean()), scaling_factor=float(1 / latents.std()))


def train(toy: Toy) -> None:
    """Train, average the weights, set the latent scale and save into the checkpoint folder."""
    settings, seed, device = toy.params["vae"], toy.params["seed"], toy.device
    torch.manual_seed(seed)
    # CPU convolutions are several times faster with the channels last.
    vae = build(settings).to(device, memory_format=torch.channels_last)
    average = copy.deepcopy(vae).requires_grad_(False)
    stream = SceneStream(seed, device)
    optimizer = torch.optim.AdamW(vae.parameters(), settings["learning_rate"], weight_decay=1e-4)
    schedule = cosine_with_warmup(optimizer, 200, settings["steps"])
    curve = Curve(toy.curve("vae"))
    for step in range(1, settings["steps"] + 1):
        images = stream.batch(settings["batch_size"]).images
        posterior = vae.encode(images.contiguous(memory_format=torch.channels_last)).latent_dist
        latents = posterior.mode()
        noise = torch.randn_like(latents) * latents.detach().std() * settings["latent_noise"]
        error = vae.decode(latents + noise).sample - images
        loss = error.abs().mean() + error.square().mean() + settings["kl_weight"] * posterior.kl().mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(vae.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        decay = min(0.998, step / (step + 100))
        torch._foreach_lerp_(list(average.parameters()), list(vae.parameters()), 1 - decay)
        if step % 500 == 0 or step == settings["steps"]:
            psnr, read, original = quality(average, SceneStream(seed + 1, device), 500)
            curve.add(step, loss=loss, psnr=psnr, exact_reconstructed=read, exact_original=original)
    set_scale(average, SceneStream(seed + 2, device))
    average.half().save_pretrained(toy.checkpoint / "vae")


if __name__ == "__main__":
    train(load_toy(FLUX))
