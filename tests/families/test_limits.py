"""Sizes that a checkpoint does not take are refused by its configuration: the largest one runs, the next one cannot."""

import logging
import shutil
from pathlib import Path

import pytest
import torch

from chunk_grpo.errors import ConfigError, DataError
from chunk_grpo.families.base import Conditioning, LoadOptions
from chunk_grpo.families.diffusers_family import DiffusersFamily
from chunk_grpo.families.models.qwen_image_21 import QwenImage21Family
from chunk_grpo.families.registry import check_checkpoint
from chunk_grpo.families.weights.checkpoint import warn_of_distilled
from tests.families.conftest import edit_json
from tests.families.parity import load, module_of


def saved(name: str, folder: Path, **changes: object) -> Path:
    """The random checkpoint of a family, with another configuration of its network."""
    pipeline = module_of(name).random_pipeline()
    torch.manual_seed(1)
    pipeline.transformer = type(pipeline.transformer).from_config({**pipeline.transformer.config, **changes})
    pipeline.save_pretrained(folder)
    return folder


def passes(family: DiffusersFamily, tokens: int) -> None:
    text = Conditioning(family.text_example(tokens))
    with torch.no_grad():
        assert family.velocity(torch.randn(1, *family.latent_shape), torch.tensor([0.5]), text).isfinite().all()


@pytest.mark.parametrize(
    ("name", "changes", "limit"), [("sd3", {"pos_embed_max_size": 6}, 6), ("z_image", {"axes_lens": [256, 6, 8]}, 6)]
)
def test_the_largest_image_runs_and_a_larger_one_is_refused(name, changes, limit, tmp_path, monkeypatch):
    folder = saved(name, tmp_path, **changes)
    tokens = module_of(name).CASE.tokens
    side = 32 // load(name, folder, height=32, width=32)._rows
    passes(load(name, folder, height=side * limit, width=side), tokens)
    with pytest.raises(
        ConfigError, match=rf"must be at most {side * limit} for .*, got {side} and {side * (limit + 1)}"
    ):
        load(name, folder, height=side, width=side * (limit + 1))
    monkeypatch.setattr("chunk_grpo.families.diffusers_family.check_limits", lambda *given: None)
    with pytest.raises((ValueError, IndexError)):
        passes(load(name, folder, height=side * (limit + 1), width=side), tokens)


def test_the_longest_text_of_z_image(tmp_path, monkeypatch):
    """66 positions: 64 of the text, which begin at 1, and one of the image."""
    folder = saved("z_image", tmp_path, axes_lens=[66, 64, 64])
    passes(load("z_image", folder, max_sequence_length=64), 64)
    with pytest.raises(ConfigError, match=r"model.max_sequence_length: must be at most 64 for .*, got 65"):
        load("z_image", folder, max_sequence_length=65)
    monkeypatch.setattr("chunk_grpo.families.diffusers_family.check_limits", lambda *given: None)
    with pytest.raises(IndexError):
        passes(load("z_image", folder, max_sequence_length=65), 65)


def test_the_longest_text_of_qwen_image(tmp_path, monkeypatch):
    """4096 positions, of which an image of 4 x 8 tokens takes 4."""
    folder = saved("qwen_image", tmp_path)
    text = folder / "text_encoder" / "config.json"
    text.write_text(text.read_text().replace('"max_position_embeddings": 512', '"max_position_embeddings": 9999'))
    family = load("qwen_image", folder, height=32, width=64, max_sequence_length=4092)
    assert (family._rows, family._columns) == (4, 8)
    passes(family, 4092)
    with pytest.raises(ConfigError, match=r"model.max_sequence_length: must be at most 4092 for .* 32 x 64 pixels"):
        load("qwen_image", folder, height=32, width=64, max_sequence_length=4093)
    monkeypatch.setattr("chunk_grpo.families.diffusers_family.check_limits", lambda *given: None)
    with pytest.raises(RuntimeError):
        passes(load("qwen_image", folder, height=32, width=64, max_sequence_length=4093), 4093)


def test_a_family_whose_token_is_a_latent_pixel_takes_any_number_of_them(tmp_path):
    """Unless it states another step; a VAE alone, as decoding loads it, has no patches of a network."""

    class OfPixels(QwenImage21Family):
        side_step = DiffusersFamily.side_step

    folder = saved("qwen_image_21", tmp_path)
    family = OfPixels.load(LoadOptions(str(folder), height=48, width=80), ("vae",))
    assert (family._rows, family._columns) == (3, 5)
    with pytest.raises(ConfigError, match=r"must be multiples of 16 for .*, got 48 and 72"):
        OfPixels.load(LoadOptions(str(folder), height=48, width=72), ("vae",))


def test_positions_of_a_text_encoder(tmp_path):
    folder = saved("flux2_klein", tmp_path)
    load("flux2_klein", folder, ("text",), max_sequence_length=512)
    with pytest.raises(ConfigError, match="must be at most 512, the positions of the text encoder"):
        load("flux2_klein", folder, max_sequence_length=513)


def test_a_tokenizer_longer_than_the_positions_of_its_encoder(tmp_path):
    folder = saved("sd3", tmp_path)
    path = folder / "tokenizer" / "tokenizer_config.json"
    edit_json(path, {"model_max_length": 1000})
    with pytest.raises(DataError, match=r"tokenizer_config.json: model_max_length must be at most "):
        load("sd3", folder)


def test_parts_of_two_checkpoints(tmp_path):
    """Each is whole."""
    folder, other = (saved("flux", tmp_path / "flux"), saved("sd3", tmp_path / "sd3", in_channels=8, out_channels=8))
    shutil.rmtree(other / "vae")
    shutil.copytree(folder / "vae", other / "vae")
    with pytest.raises(DataError, match="the transformer takes 8 latent channels and the vae has 4"):
        load("sd3", other)


def test_reports_wrong_size_and_unknown_layer_before_reading_weights(tmp_path):
    folder = saved("sd3", tmp_path, pos_embed_max_size=6)
    options = load("sd3", folder)._options
    check_checkpoint("sd3", options, [(16, 24)], ("to_q",))
    with pytest.raises(ConfigError, match=r"generate.height and generate.width: must be multiples of "):
        check_checkpoint("sd3", options, [(32, 33)], None)
    with pytest.raises(ConfigError, match="must be at most "):
        check_checkpoint("sd3", options, [(4096, 32)], None)
    with pytest.raises(ConfigError, match=r"train.lora.targets: must name linear layers of SD3Transformer2DModel"):
        check_checkpoint("sd3", options, [], ("to_query",))


@pytest.mark.parametrize(
    ("name", "file", "change", "folder", "is_named"),
    [
        ("flux", "transformer/config.json", {"guidance_embeds": False}, "model", True),
        ("flux2_klein", "model_index.json", {"is_distilled": True}, "model", True),
        ("z_image", "model_index.json", {}, "Z-Image-Turbo", True),
        ("flux", "transformer/config.json", {"guidance_embeds": True}, "model", False),
        ("flux2_klein", "model_index.json", {"is_distilled": False}, "my-klein", False),
        ("z_image", "model_index.json", {}, "model", False),
    ],
)
def test_a_model_of_few_steps_is_named(name, file, change, folder, is_named, tmp_path, caplog):
    """A change is made in the files alone: the check reads nothing else."""
    place = tmp_path / folder
    network = change if file.startswith("transformer") else {}
    saved(name, place, **network)
    path = place / file
    edit_json(path, change)
    options = LoadOptions(str(place), height=32, width=32, max_sequence_length=8)
    with caplog.at_level(logging.WARNING, "chunk_grpo.families.weights.checkpoint"):
        check_checkpoint(name, options, [], None)
    assert ("is distilled to few steps" in caplog.text) == is_named


@pytest.mark.parametrize(
    ("name", "is_named"),
    [
        ("black-forest-labs/FLUX.1-schnell", True),
        ("black-forest-labs/FLUX.2-klein-4B", True),
        ("black-forest-labs/FLUX.2-klein-base-4B", False),
        ("Tongyi-MAI/Z-Image-Turbo", True),
        ("Tongyi-MAI/Z-Image", False),
        ("black-forest-labs/FLUX.1-Krea-dev", False),
    ],
)
def test_a_hub_id_of_few_steps_is_named(name, is_named, caplog):
    with caplog.at_level(logging.WARNING, "chunk_grpo.families.weights.checkpoint"):
        warn_of_distilled(name)
    assert ("is distilled to few steps" in caplog.text) == is_named


@pytest.mark.parametrize(
    ("name", "network", "index"),
    [("flux2_klein", {}, {"is_distilled": True}), ("flux", {"guidance_embeds": False}, {})],
)
def test_a_distilled_model_takes_no_guidance(name, network, index, tmp_path):
    folder = saved(name, tmp_path, **network)
    edit_json(folder / "model_index.json", index)
    load(name, folder, cfg_scale=1.0)
    with pytest.raises(ConfigError, match=r"must be 1 for .*, which was distilled .*, got 4; set both to 1"):
        load(name, folder, cfg_scale=4.0)
