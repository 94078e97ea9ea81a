"""Our adapter and sampler against diffusers' own FluxPipeline call on the same checkpoint."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline
from torch import Tensor

from chunk_grpo.core.flow import ode_step, time_grid
from chunk_grpo.core.rollout import rollout_ode
from chunk_grpo.errors import ConfigError
from chunk_grpo.families.base import Conditioning, LoadOptions, velocity_function
from chunk_grpo.families.models.flux import FluxFamily

TINY = Path(__file__).parents[2] / "assets" / "tiny-flux"
PROMPTS = ["a red circle", "two squares", "a cross above a circle", "a blue square and a red cross"]
NOISE_SEED = 8
"""Of noise that leads to one picture clearly. With seed 7 a trajectory of 40x16 runs between two pictures: moving its
noise by one rounding of float32 (6e-8) moves its latents by 1e-4. The step-by-step test below has that one too."""


def largest_difference(
    checkpoint: Path, batch: int, height: int, width: int, num_steps: int
) -> tuple[float, float]:
    """Largest absolute difference of the final latents, and of the decoded pictures in [0, 1]."""
    prompts = PROMPTS[:batch]
    family = FluxFamily.load(LoadOptions(str(checkpoint), height=height, width=width, max_sequence_length=8))
    noise = torch.randn(batch, *family.latent_shape, generator=torch.Generator().manual_seed(NOISE_SEED))
    with torch.no_grad():
        velocity = velocity_function(family, family.encode(prompts))
        ours = rollout_ode(lambda step: velocity, noise, time_grid(num_steps, 3.0))[:, -1]
    pipeline = FluxPipeline.from_pretrained(checkpoint, dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    settings = {
        "height": height,
        "width": width,
        "num_inference_steps": num_steps,
        "max_sequence_length": 8,
        "guidance_scale": 3.5,
    }
    theirs = pipeline(prompts, latents=noise, output_type="latent", **settings).images
    pictures = pipeline(prompts, latents=noise, output_type="pt", **settings).images
    return float((ours - theirs).abs().max()), float((family.decode(ours) - pictures).abs().max())


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize(
    ("name", "height", "width", "num_steps"),
    [
        *(("tiny", *size, steps) for size in ((32, 32), (24, 64), (40, 16)) for steps in (17, 50)),
        ("sharded", 40, 56, 8),
        ("bf16", 40, 56, 8),
    ],
)
def test_latents_and_pictures_equal_those_of_diffusers_pipeline(
    name, height, width, num_steps, batch, sharded_checkpoint, bf16_checkpoint
):
    checkpoint = {"tiny": TINY, "sharded": sharded_checkpoint, "bf16": bf16_checkpoint}[name]
    latents, pictures = largest_difference(checkpoint, batch, height, width, num_steps)
    assert latents < 1e-4
    assert pictures < 1e-4


@pytest.mark.parametrize("seed", [7, 8])
@pytest.mark.parametrize(("height", "width"), [(32, 32), (24, 64), (40, 16)])
def test_every_step_equals_diffusers_from_the_same_state(height, width, seed):
    """Step by step rounding does not add up, so this holds far closer than the whole trajectory can."""
    family = FluxFamily.load(LoadOptions(str(TINY), height=height, width=width, max_sequence_length=8))
    noise = torch.randn(4, *family.latent_shape, generator=torch.Generator().manual_seed(seed))
    states = [noise]

    def record(
        pipeline: FluxPipeline, step: int, timestep: Tensor, found: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        states.append(found["latents"])
        return found

    pipeline = FluxPipeline.from_pretrained(TINY, dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    pipeline(
        PROMPTS, latents=noise, output_type="latent", height=height, width=width, num_inference_steps=50,
        max_sequence_length=8, guidance_scale=3.5, callback_on_step_end=record,
    )  # fmt: skip
    velocity = velocity_function(family, family.encode(PROMPTS))
    times = time_grid(50, 3.0).tolist()
    assert len(states) == len(times)
    with torch.no_grad():
        for x, expected, t, t_next in zip(states, states[1:], times, times[1:], strict=False):
            ours = ode_step(x, velocity(x, torch.full((4,), t)), t, t_next)
            assert (ours - expected).abs().max() < 5e-6


@pytest.mark.parametrize("size", [(32, 32), (40, 64)])
@pytest.mark.parametrize(
    "settings", [{"shift": 2.0}, {"use_dynamic_shifting": True, "base_image_seq_len": 8}]
)
def test_pipeline_times_equal_diffusers_grid(settings, size, tmp_path):
    """A static shift, and one that depends on the size."""
    pipeline = FluxPipeline.from_pretrained(TINY, dtype=torch.float32)
    pipeline.scheduler = FlowMatchEulerDiscreteScheduler(**settings)
    pipeline.save_pretrained(tmp_path)
    pipeline.set_progress_bar_config(disable=True)
    height, width = size
    pipeline(["a circle"], height=height, width=width, num_inference_steps=9, max_sequence_length=8)
    options = LoadOptions(str(tmp_path), height=height, width=width, max_sequence_length=8)
    times = FluxFamily.load(options, ("vae",)).pipeline_times(9)
    assert times.dtype == torch.float64
    assert torch.equal(times.float(), pipeline.scheduler.sigmas)
    if "shift" in settings:
        assert (times - time_grid(9, 2.0)).abs().max() < 1e-7
    else:
        plain = time_grid(9, float(times[4] * (1 - 5 / 9) / (5 / 9 * (1 - times[4]))))
        assert (times - plain).abs().max() < 1e-6  # a plain grid, too: exp(mu) is its shift


def test_scheduler_with_own_levels_applies_shift_twice(tmp_path):
    """Of SD3: levels from 1 to shift(1 / 1000), shifted again. shift(t) = 3 t / (1 + 2 t)."""

    class Twice(FluxFamily):
        grid_is_even = False

    times = Twice.load(LoadOptions(str(TINY), height=32, width=32), ("vae",)).pipeline_times(10)
    first = torch.linspace(1, 3e-3 / 1.002, 10, dtype=torch.float64)
    expected = torch.cat([3 * first / (1 + 2 * first), torch.zeros(1, dtype=torch.float64)])
    assert (times - expected).abs().max() < 1e-6
    assert times[-2] == pytest.approx(0.0089, abs=1e-4)


@pytest.mark.parametrize("passes", [1, 2])
def test_guided_latents_equal_those_of_diffusers_pipeline(passes):
    """Classifier-free guidance away from another prompt, by one doubled pass and by two."""
    options = LoadOptions(
        str(TINY), height=32, width=32, max_sequence_length=8, cfg_scale=2.5, cfg_passes=passes
    )
    family, away = FluxFamily.load(options), "a green cross"
    noise = torch.randn(4, *family.latent_shape, generator=torch.Generator().manual_seed(NOISE_SEED))
    text = Conditioning(family.encode(PROMPTS).tensors, family.encode([away]).tensors)
    with torch.no_grad():
        velocity = velocity_function(family, text)
        ours = rollout_ode(lambda step: velocity, noise, time_grid(17, 3.0))[:, -1]
    pipeline = FluxPipeline.from_pretrained(TINY, dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    theirs = pipeline(
        PROMPTS, negative_prompt=[away] * 4, true_cfg_scale=2.5, latents=noise, output_type="latent", height=32,
        width=32, num_inference_steps=17, max_sequence_length=8, guidance_scale=3.5,
    ).images  # fmt: skip
    assert (ours - theirs).abs().max() < 1e-4
    without = FluxFamily.load(replace(options, cfg_scale=1.0)).velocity(noise, torch.full((4,), 0.9), text)
    assert (without - velocity(noise, torch.full((4,), 0.9))).abs().max() > 0.1


def test_guidance_without_a_negative_prompt_is_an_error():
    family = FluxFamily.load(
        LoadOptions(str(TINY), height=32, width=32, max_sequence_length=8, cfg_scale=2.0)
    )
    with pytest.raises(ValueError, match="needs a negative prompt's tensors"):
        family.velocity(torch.zeros(1, *family.latent_shape), torch.ones(1), family.encode(["a circle"]))


def test_the_example_of_its_text_is_like_its_text() -> None:
    family = FluxFamily.load(LoadOptions(str(TINY), height=32, width=32, max_sequence_length=8))
    text, example = family.encode(PROMPTS[:1]).tensors, family.text_example(8)
    assert {name: (tensor.shape, tensor.dtype) for name, tensor in text.items()} == {
        name: (tensor.shape, tensor.dtype) for name, tensor in example.items()
    }


def test_parts_that_are_not_named_stay_out_of_memory():
    family = FluxFamily.load(LoadOptions(str(TINY), height=32, width=32), parts=("transformer",))
    with pytest.raises(ValueError, match='"text" was not loaded'):
        family.encode(["a circle"])


def test_size_must_fit_the_token_grid():
    options = LoadOptions(str(TINY), height=40, width=30)
    with pytest.raises(ConfigError, match=r"multiples of 8 for .*tiny-flux, got 40 and 30"):
        FluxFamily.load(options)
    with pytest.raises(ConfigError, match="multiples of 8"):
        FluxFamily.load(options, parts=("transformer",))
    FluxFamily.load(options, parts=("text",))


def test_transformer_survives_saving(tmp_path):
    family = FluxFamily.load(LoadOptions(str(TINY), height=32, width=32))
    x, t = torch.randn(2, *family.latent_shape), torch.tensor([0.9, 0.3])
    conditioning = family.encode(PROMPTS[:2])
    with torch.no_grad():
        before = family.velocity(x, t, conditioning)
        family.save_transformer(family.policy_state(), tmp_path)
        assert torch.equal(family.with_transformer(tmp_path).velocity(x, t, conditioning), before)
