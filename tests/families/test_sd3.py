"""SD3 on a small random checkpoint and on the toy, against diffusers' own StableDiffusion3Pipeline call."""

from pathlib import Path

import pytest
import torch
from diffusers import SD3Transformer2DModel, StableDiffusion3Pipeline

from chunk_grpo.core.rollout import rollout_ode
from chunk_grpo.families.base import Conditioning, LoadOptions, TuningOptions, velocity_function
from chunk_grpo.families.models.sd3 import SD3Family
from tests.families.sd3_checkpoint import random_pipeline

PROMPTS = ["a red circle", "two squares", "a cross above a circle", "a blue square and a red cross"]
TOKENS, AWAY = 8, "a green cross"
TOY = Path(__file__).parents[2] / "assets" / "tiny-sd3"


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The random pipeline with its network in several files, and stored in bfloat16; and the shipped toy."""
    folder = tmp_path_factory.mktemp("sd3")
    random_pipeline().save_pretrained(folder / "sharded", max_shard_size="60KB")
    assert len(list((folder / "sharded" / "transformer").glob("*.safetensors"))) > 1
    random_pipeline().to(torch.bfloat16).save_pretrained(folder / "bf16")
    return {name: folder / name for name in ("sharded", "bf16")} | {"toy": TOY}


def text_of(family: SD3Family, prompts: list[str]) -> Conditioning:
    return Conditioning(family.encode(prompts).tensors, family.encode([AWAY]).tensors)


@pytest.mark.parametrize("guidance", [1.0, 4.5])
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize(
    ("name", "height", "width"), [("sharded", 32, 32), ("bf16", 40, 64), ("toy", 32, 32)]
)
def test_latents_and_pictures_equal_those_of_diffusers_pipeline(
    name: str, height: int, width: int, batch: int, guidance: float, checkpoints: dict[str, Path]
) -> None:
    """Encoding, velocity, grid, guidance and decoding; the prompts have unequal lengths."""
    options = LoadOptions(
        str(checkpoints[name]), height=height, width=width, max_sequence_length=TOKENS, cfg_scale=guidance
    )
    family, prompts = SD3Family.load(options), PROMPTS[:batch]
    noise = torch.randn(batch, *family.latent_shape, generator=torch.Generator().manual_seed(8))
    with torch.no_grad():
        velocity = velocity_function(family, text_of(family, prompts))
        ours = rollout_ode(lambda step: velocity, noise, family.pipeline_times(10))[:, -1]
    pipeline = StableDiffusion3Pipeline.from_pretrained(checkpoints[name], dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    settings = {"height": height, "width": width, "num_inference_steps": 10, "guidance_scale": guidance}
    settings |= {"max_sequence_length": TOKENS, "negative_prompt": [AWAY] * batch}
    start = family._pixels(noise)
    theirs = pipeline(prompts, latents=start, output_type="latent", **settings).images
    pictures = pipeline(prompts, latents=start, output_type="pt", **settings).images
    assert (family._pixels(ours) - theirs).abs().max() < 1e-5 * max(1.0, float(theirs.abs().max()))
    assert (family.decode(ours) - pictures).abs().max() < 1e-5


def test_tokens_are_the_pixels_of_two_by_two(checkpoints: dict[str, Path]) -> None:
    options = LoadOptions(str(checkpoints["sharded"]), height=32, width=48)
    family = SD3Family.load(options, ("transformer",))
    assert family.latent_shape == (4 * 6, 16)
    tokens = torch.arange(24 * 16.0).reshape(1, 24, 16)
    pixels = family._pixels(tokens)
    assert pixels.shape == (1, 4, 8, 12)
    assert pixels[0, 1, 0, :2].tolist() == [4, 5] and pixels[0, 1, 1, :2].tolist() == [6, 7]


def test_its_blocks_are_compiled(checkpoints: dict[str, Path]) -> None:
    """Its class names no repeated blocks."""
    options = LoadOptions(str(checkpoints["sharded"]), height=32, width=32)
    family = SD3Family.load(options, ("transformer",))
    family.prepare_training(TuningOptions(None, 1.0, (), False, None, compiles=True), 0)
    compiled = [module for module in family.transformer.modules() if module._compiled_call_impl is not None]
    assert compiled == list(family.transformer.transformer_blocks)


@pytest.mark.parametrize("rank", [None, 4])
def test_a_trained_policy_is_saved_and_loads_in_diffusers(
    rank: int | None, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    options = LoadOptions(str(checkpoints["sharded"]), height=32, width=32, max_sequence_length=TOKENS)
    family = SD3Family.load(options)
    text = family.encode(PROMPTS[:2])
    x, t = torch.randn(2, *family.latent_shape), torch.tensor([0.9, 0.2])
    base = family.velocity(x, t, text).detach()
    family.prepare_training(TuningOptions(rank, 8.0, ("to_q", "to_out.0"), True, None), 0)
    reference = family.reference()
    optimizer = torch.optim.SGD(list(family.trainable_parameters()), lr=0.1)
    for _ in range(2):
        family.velocity(x, t, text).square().mean().backward()
        optimizer.step()
    tuned = family.velocity(x, t, text).detach()
    assert torch.equal(reference.velocity(x, t, text), base)
    assert (tuned - base).abs().max() > 1e-3
    family.save_transformer(family.policy_state(), tmp_path / "policy")
    again = SD3Family.load(options).with_transformer(tmp_path / "policy")
    assert torch.equal(again.velocity(x, t, text), tuned)
    pipeline = StableDiffusion3Pipeline.from_pretrained(checkpoints["sharded"], dtype=torch.float32)
    if rank is None:
        pipeline.transformer = SD3Transformer2DModel.from_pretrained(tmp_path / "policy", dtype=torch.float32)
    else:
        pipeline.load_lora_weights(tmp_path / "policy")
    theirs = SD3Family(pipeline, options)
    assert (theirs.velocity(x, t, text) - tuned).abs().max() < 1e-6
