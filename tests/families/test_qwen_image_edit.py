"""Qwen-Image-Edit: what it has and other families do not."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import QwenImageTransformer2DModel

from chunk_grpo.errors import ConfigError
from chunk_grpo.families.models.qwen_image_edit import _SHOWN, PictureProcessor
from chunk_grpo.families.registry import family_class
from tests.families.checkpoint_qwen_image_edit import random_pipeline
from tests.families.conftest import edit_json
from tests.families.parity import PROMPTS, as_loaded, differences, load, pictures

NAME = "qwen_image_edit"


@pytest.fixture
def folder(checkpoints) -> Path:
    return checkpoints(NAME)["sharded"]


@pytest.fixture
def copy(folder, tmp_path) -> Path:
    """The checkpoint, to change."""
    return Path(shutil.copytree(folder, tmp_path / "model"))


def test_the_files_of_its_processor_are_read_without_torchvision(folder, copy):
    """As the hub has them: transformers' own class and those of images and videos, which need it, by name."""
    given = json.loads((copy / "processor" / "processor_config.json").read_text())
    (copy / "processor" / "processor_config.json").unlink()
    images = given["image_processor"] | {
        "image_processor_type": "Qwen2VLImageProcessorFast", "processor_class": "Qwen2_5_VLProcessor",
    }  # fmt: skip
    (copy / "processor" / "preprocessor_config.json").write_text(json.dumps(images))
    videos = images | {"video_processor_type": "Qwen2VLVideoProcessor"}
    (copy / "processor" / "video_preprocessor_config.json").write_text(json.dumps(videos))
    edit_json(copy / "model_index.json", {"processor": ["transformers", "Qwen2VLProcessor"]})
    read, usual = load(NAME, copy), as_loaded(NAME, folder)
    assert isinstance(read._pipeline.processor, PictureProcessor)
    edited = pictures(1, 32, 64)
    found, expected = (each.encode(PROMPTS[:1], edited).tensors for each in (read, usual))
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_training_needs_no_processor(copy):
    options = load(NAME, copy)._options
    for part in ("processor", "text_encoder", "tokenizer"):
        shutil.rmtree(copy / part)
    family = family_class(NAME).load(options, ("transformer", "vae"))
    assert family.frozen_copy().latent_shape == family.latent_shape == (4 * 8, 16)


def test_the_text_encoder_sees_the_picture(folder):
    """Another picture moves the prompt's tensors, and in them those of its words."""
    family = as_loaded(NAME, folder)
    first, second = (family.encode(PROMPTS[:1], [each])["prompt_embeds"] for each in pictures(2, 32, 64))
    words = family.encode(PROMPTS[:1], pictures(1, 32, 64))["mask"].sum()
    assert (first - second)[0, words - 12 : words].abs().amax(dim=1).min() > 1e-6


def test_the_place_for_the_picture_is_large_enough(folder):
    """Of every ratio. 1024 x 1024 pixels, shown as 384 x 384, are 14 x 14 tokens."""
    family = as_loaded(NAME, folder)
    for height in (*range(32, 1024, 24), 1024):
        shown = family._shown(np.zeros((height, 1024, 3), dtype=np.uint8))
        (grid,) = family._pipeline.processor.image_processor([shown], return_tensors="pt")["image_grid_thw"]
        tokens = int(grid.prod()) // 4 + len("Picture 1: ") + 2
        assert tokens <= _SHOWN, height
    assert tokens == 14 * 14 + 13


def test_a_text_that_is_too_long_is_cut_off(folder):
    edited = pictures(1, 32, 64)
    whole = as_loaded(NAME, folder).encode(PROMPTS[:1], edited)
    cut = as_loaded(NAME, folder, max_sequence_length=20).encode(PROMPTS[:1], edited)
    assert cut["mask"].shape == (1, 20 + _SHOWN) and cut["mask"].all()
    assert torch.equal(cut["prompt_embeds"], whole["prompt_embeds"][:, : 20 + _SHOWN])


def test_the_longest_text(copy):
    """4096 positions, of which an image of 4 x 8 tokens takes 4 and the picture's tokens theirs."""
    longest = 4096 - 4 - _SHOWN
    encoder = copy / "text_encoder" / "config.json"
    text = json.loads(encoder.read_text())["text_config"]
    edit_json(encoder, {"text_config": {**text, "max_position_embeddings": 9999}})
    family = load(NAME, copy, height=32, width=64, max_sequence_length=longest)
    example = {**family.text_example(longest), "source": torch.zeros(1, 16, 4, 8)}
    with torch.no_grad():
        x = torch.randn(1, *family.latent_shape)
        assert family.network_output(family.transformer, x, torch.tensor([0.5]), example).isfinite().all()
    with pytest.raises(ConfigError, match=rf"model.max_sequence_length: must be at most {longest} for "):
        load(NAME, copy, height=32, width=64, max_sequence_length=longest + 1)


@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_a_network_that_reads_the_source_at_noise_level_0_equals_the_pipeline(scale, tmp_path):
    """As that of Qwen-Image-Edit-2511."""
    pipeline = random_pipeline()
    torch.manual_seed(1)
    pipeline.transformer = QwenImageTransformer2DModel.from_config(pipeline.transformer.config, zero_cond_t=True)
    pipeline.save_pretrained(tmp_path)
    assert load(NAME, tmp_path).transformer.zero_cond_t
    assert max(differences(NAME, tmp_path, (32, 64), 2, scale, source=(64, 64))) < 1e-5
