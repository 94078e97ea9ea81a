"""The recipe of the toy checkpoints: networks of the shipped ones' shape, and the steps of the toy SD3 in small."""

import json
from pathlib import Path

import pytest
import torch
from diffusers import StableDiffusion3Pipeline

from pretraining import clip_encoders, initial, transformer
from pretraining.toys import FLUX, SD3, SHIPPED, Toy, load_toy
from tests.pretraining.conftest import small

ASSETS = Path(__file__).resolve().parents[2] / "assets"


@pytest.mark.parametrize("name", [FLUX, SD3])
def test_the_recipe_builds_networks_of_the_shipped_shape(name: str) -> None:
    shipped = json.loads((ASSETS / name / "transformer" / "config.json").read_text())
    built = json.loads(initial.build(load_toy(name)).to_json_string())
    assert shipped.keys() - {"_diffusers_version"} <= built.keys()
    assert {key: built[key] for key in shipped if key != "_diffusers_version"} == {
        key: value for key, value in shipped.items() if key != "_diffusers_version"
    }


@pytest.mark.parametrize("name", [FLUX, SD3])
def test_an_untrained_block_changes_no_image_token(name: str) -> None:
    """All modulations are zero, gates among them; so is the output."""
    network = initial.build(load_toy(name))
    assert not network.proj_out.weight.any() and not network.norm_out.linear.weight.any()
    width = network.inner_dim
    x, text, temb = torch.randn(2, 16, width), torch.randn(2, 5, width), torch.randn(2, width)
    for block in network.transformer_blocks:
        out = block(hidden_states=x, encoder_hidden_states=text, temb=temb)
        assert torch.equal(out[1], x)


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    """The steps before the transformer's."""
    toy = small(SD3, "sd3", 4, tmp_path_factory.mktemp("begun"))
    clip_encoders.train(toy)
    initial.save_network(initial.build(toy), toy.phase_folder("initial"))
    initial.write_pipeline_index(toy)
    return toy


def test_the_toys_share_decoder_t5_and_words(begun: Toy) -> None:
    for source, target in clip_encoders.COPIED.items():
        names = {path.name for path in (SHIPPED / source).iterdir()}
        assert names == {path.name for path in (begun.checkpoint / target).iterdir()}
        for name in names:
            assert (SHIPPED / source / name).read_bytes() == (begun.checkpoint / target / name).read_bytes()
    for name in clip_encoders.CLIPS.values():
        mine, flux = (
            json.loads((folder / "tokenizer.json").read_text())["model"]
            for folder in (begun.checkpoint / name, SHIPPED / "tokenizer")
        )
        assert mine == flux


def weights(toy: Toy) -> bytes:
    return (toy.phase_folder("sd3") / "diffusion_pytorch_model.safetensors").read_bytes()


def test_a_stopped_phase_goes_on_and_the_result_is_a_pipeline(begun: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    transformer.train(begun, "sd3")
    whole = weights(begun)
    with monkeypatch.context() as patch:
        patch.setattr(transformer.Run, "save", lambda run: stop_after_saving(run))
        with pytest.raises(KeyboardInterrupt):
            transformer.train(begun, "sd3")
    assert (begun.folder / "sd3.ckpt").exists()
    transformer.train(begun, "sd3")
    assert weights(begun) == whole
    assert not (begun.folder / "sd3.ckpt").exists()
    steps = [json.loads(line)["step"] for line in begun.curve("transformer-sd3").read_text().splitlines()]
    assert steps == [2, 4]
    begun.phase_folder("sd3").rename(begun.checkpoint / "transformer")
    pipeline = StableDiffusion3Pipeline.from_pretrained(begun.checkpoint, dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    sizes = {"height": 32, "width": 32, "max_sequence_length": begun.params["text"]["max_length"]}
    picture = pipeline("a red circle", num_inference_steps=2, guidance_scale=3.0, **sizes).images[0]
    assert picture.size == (32, 32)


SAVE = transformer.Run.save


def stop_after_saving(run: transformer.Run) -> None:
    SAVE(run)
    raise KeyboardInterrupt
