"""Qwen-Image-2.1: what its network and its pictures have and those of other families do not."""

import shutil
from pathlib import Path

import pytest
import torch
from diffusers.models.transformers.transformer_qwenimage21 import QwenImage21AttnProcessor
from torch import Tensor

from chunk_grpo.errors import ConfigError
from chunk_grpo.families.diffusers_family import DiffusersFamily
from chunk_grpo.families.registry import family_class
from tests.families.conftest import edit_json
from tests.families.parity import PROMPTS, as_loaded, load

NAME = "qwen_image_21"


@pytest.fixture
def folder(checkpoints) -> Path:
    return checkpoints(NAME)["sharded"]


@pytest.fixture
def copy(folder, tmp_path) -> Path:
    """The checkpoint, to change."""
    return Path(shutil.copytree(folder, tmp_path / "model"))


def test_a_picture_does_not_depend_on_other_prompts_or_on_padding(folder):
    """With diffusers' own processor it does: all images come after the longest text and its padding."""
    long, short = as_loaded(NAME, folder), as_loaded(NAME, folder, max_sequence_length=110)
    x, t = torch.randn(4, *long.latent_shape), torch.full((4,), 0.6)
    assert len(set(long.encode(PROMPTS)["mask"].sum(1).tolist())) == 4

    def of(family: DiffusersFamily, rows: list[int]) -> Tensor:
        with torch.no_grad():
            return family.velocity(x[rows], t[rows], family.encode([PROMPTS[row] for row in rows]))

    def apart() -> tuple[float, ...]:
        together, alone = of(long, [0, 1, 2, 3]), torch.cat([of(long, [row]) for row in range(4)])
        return tuple(float((other - together).abs().max()) for other in (alone, of(short, [0, 1, 2, 3])))

    assert max(apart()) < 1e-6
    for family in (long, short):
        family.transformer.set_attn_processor(QwenImage21AttnProcessor())
    assert apart()[0] < 1e-6  # all are padded to one length
    assert apart()[1] > 1e-5


def test_a_text_that_is_too_long_is_cut_off(folder):
    whole, cut = (as_loaded(NAME, folder, max_sequence_length=tokens).encode(PROMPTS[:1]) for tokens in (128, 20))
    assert cut["mask"].shape == (1, 20) and cut["mask"].all()
    assert torch.equal(cut["prompt_embeds"], whole["prompt_embeds"][:, :20])


def test_training_needs_no_processor(copy):
    options = load(NAME, copy)._options
    for part in ("processor", "text_encoder"):
        shutil.rmtree(copy / part)
    family = family_class(NAME).load(options, ("transformer", "vae"))
    assert family.frozen_copy().latent_shape == family.latent_shape == (4, 4)


def test_transparent_pixels_are_white(folder, monkeypatch):
    """Colour 0.2 on 0.25 of the light through: 0.2 * 0.75 + 0.25."""
    family = as_loaded(NAME, folder)
    picture = torch.tensor([0.2, 0.2, 0.2, 0.75]).view(1, 4, 1, 1, 1) * 2 - 1
    monkeypatch.setattr(family._pipeline.vae, "decode", lambda latents, return_dict: (picture,))
    drawn = family.decode(torch.zeros(1, *family.latent_shape))
    assert drawn.flatten().tolist() == pytest.approx([0.4] * 3)


def test_sides_are_multiples_of_two_latent_pixels(folder):
    """The network has a place for 2 x 2 of them each."""
    with pytest.raises(ConfigError, match=r"must be multiples of 32 for .*, got 64 and 48"):
        as_loaded(NAME, folder, height=64, width=48)


def test_limits_are_those_of_the_networks_tables(folder):
    """Rows of the table: positions from 0 up, then those from the least one up to -1. Other rows would pass unseen."""
    family = as_loaded(NAME, folder)
    table = family.transformer.pos_embed.freqs[0][:, 0].angle()  # of frequency 1: the angle is the position
    least = -(family.grid_limit // 2)
    positions = torch.tensor([*range(family.text_limit + 1), *range(least, 0)], dtype=torch.float64)
    assert torch.allclose(table.cos().double(), positions.cos(), atol=1e-3)
    assert torch.allclose(table.sin().double(), positions.sin(), atol=1e-3)


def test_a_model_with_noise_levels_of_its_own_is_refused(copy):
    edit_json(copy / "model_index.json", {"sample_sigmas": [1.0, 0.5]})
    with pytest.raises(ConfigError, match=r"model.checkpoint: must have no noise levels of its own"):
        load(NAME, copy)


@pytest.mark.parametrize("backend", ["native", "_native_math"])
def test_an_attention_backend_is_tried_and_used(backend, folder):
    given, plain = as_loaded(NAME, folder, attention_backend=backend), as_loaded(NAME, folder)
    text, x, t = plain.encode(PROMPTS[:2]), torch.randn(2, *plain.latent_shape), torch.tensor([0.9, 0.2])
    with torch.no_grad():
        assert (given.velocity(x, t, text) - plain.velocity(x, t, text)).abs().max() < 1e-5
    layer = given.transformer.transformer_blocks[0].attn
    assert layer.processor._attention_backend == backend
