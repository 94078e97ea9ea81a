"""The toy FLUX: each step and the grid against diffusers' own call of its pipeline, and what a family refuses."""

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline
from torch import Tensor

from chunk_grpo.core.flow import ode_step, time_grid
from chunk_grpo.errors import ConfigError
from chunk_grpo.families.base import LoadOptions, velocity_function
from chunk_grpo.families.models.flux import FluxFamily
from tests.families.parity import PROMPTS
from tests.families.small_parts import TINY


@pytest.mark.parametrize(("height", "width"), [(32, 32), (24, 64), (40, 16)])
def test_every_step_equals_diffusers_from_the_same_state(height, width):
    """Step by step rounding does not add up, so this holds far closer than the whole trajectory can."""
    family = FluxFamily.load(LoadOptions(str(TINY), height=height, width=width, max_sequence_length=8))
    noise = torch.randn(4, *family.latent_shape, generator=torch.Generator().manual_seed(7))
    states = [noise]

    def record(pipeline: FluxPipeline, step: int, timestep: Tensor, found: dict[str, Tensor]) -> dict[str, Tensor]:
        states.append(found["latents"])
        return found

    pipeline = FluxPipeline.from_pretrained(TINY, dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    pipeline(
        PROMPTS, latents=noise, output_type="latent", height=height, width=width, num_inference_steps=12,
        max_sequence_length=8, guidance_scale=3.5, callback_on_step_end=record,
    )  # fmt: skip
    velocity = velocity_function(family, family.encode(PROMPTS))
    times = time_grid(12, 3.0).tolist()
    assert len(states) == len(times)
    with torch.no_grad():
        for x, expected, t, t_next in zip(states, states[1:], times, times[1:], strict=False):
            ours = ode_step(x, velocity(x, torch.full((4,), t)), t, t_next)
            assert (ours - expected).abs().max() < 5e-6


@pytest.mark.parametrize("size", [(32, 32), (40, 64)])
@pytest.mark.parametrize("settings", [{"shift": 2.0}, {"use_dynamic_shifting": True, "base_image_seq_len": 8}])
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


def test_guidance_without_a_negative_prompt_is_an_error():
    family = FluxFamily.load(LoadOptions(str(TINY), height=32, width=32, max_sequence_length=8, cfg_scale=2.0))
    with pytest.raises(ValueError, match="needs a negative prompt's tensors"):
        family.velocity(torch.zeros(1, *family.latent_shape), torch.ones(1), family.encode(["a circle"]))


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


def test_guidance_trains_both_branches():
    """v(n) + 4.5 (v(c) - v(n)): the gradient is 4.5 through the prompt's pass and -3.5 through the negative one's."""
    family = FluxFamily.load(LoadOptions(str(TINY), height=32, width=32, max_sequence_length=8), ("vae",))
    towards, away = (torch.zeros(1, 2, 3, requires_grad=True) for _ in range(2))
    family.guided(towards, away, 4.5).sum().backward()
    assert towards.grad.unique().tolist() == [4.5]
    assert away.grad.unique().tolist() == [-3.5]
