"""The first stage refuses a base model that does not fit its files or params.yaml, before any other work."""

import shutil
import sys
from pathlib import Path

import pytest
from diffusers import AutoencoderKL, FluxPipeline
from safetensors.torch import load_file, save_file

from chunk_grpo.library.checked_model import MEMORY
from tests.conftest import CHECKPOINT, Workspace
from tests.params_edits import Edit, put


def refused(made: Workspace, code: int, capsys: pytest.CaptureFixture[str]) -> str:
    assert made.run("inputs") == code
    said = capsys.readouterr().err
    assert "Traceback" not in said
    return said


def with_a_vae_of_factor_8(folder: Path) -> None:
    """The real VAE's factor, so that sides are multiples of 16."""
    pipeline = FluxPipeline.from_pretrained(CHECKPOINT)
    pipeline.vae = AutoencoderKL(
        down_block_types=["DownEncoderBlock2D"] * 4, up_block_types=["UpDecoderBlock2D"] * 4,
        block_out_channels=[8, 8, 8, 16], layers_per_block=1, latent_channels=pipeline.vae.config.latent_channels,
        norm_num_groups=4, use_quant_conv=False, use_post_quant_conv=False, scaling_factor=0.3611, shift_factor=0.1159,
    )  # fmt: skip
    pipeline.save_pretrained(folder)


def test_a_size_of_evaluation_that_the_checkpoint_does_not_take(workspace, capsys):
    with_a_vae_of_factor_8(workspace.root / "model")
    for edit in (put("model.checkpoint", "model"), put("generate.height", 40), put("generate.width", 40)):
        workspace.edit(edit)
    assert "must be multiples of 16 for model, got 40 and 40" in refused(workspace, 2, capsys)
    workspace.edit(put("generate.height", 48))
    workspace.edit(put("generate.width", 48))
    assert workspace.run("inputs") == 0


@pytest.mark.parametrize(
    ("height", "width"), [pytest.param(1080, 1920, id="1920x1080"), pytest.param(1024, 1000, id="1000")]
)
def test_sizes_for_a_known_hub_id_need_no_files(height, width, workspace, capsys, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for edit in (
        put("model.checkpoint", "black-forest-labs/FLUX.1-dev"),
        put("model.revision", "0" * 40),
        put("generate.height", height),
        put("generate.width", width),
    ):
        workspace.edit(edit)
    assert f"must be multiples of 16 for black-forest-labs/FLUX.1-dev, got {height} and {width}" in refused(
        workspace, 2, capsys
    )


def test_a_weight_that_is_missing(workspace, capsys):
    """tests/families/test_base_weights.py has all parts of all families."""
    shutil.copytree(CHECKPOINT, workspace.root / "model")
    path = next((workspace.root / "model" / "text_encoder_2").glob("*.safetensors"))
    state = load_file(path)
    lost = sorted(state)[-1]
    save_file({name: value for name, value in state.items() if name != lost}, path)
    workspace.edit(put("model.checkpoint", "model"))
    said = refused(workspace, 3, capsys)
    assert f"model/text_encoder_2/{path.name}: weights do not fit the model: " in said
    assert f"{lost} is missing" in said


def lora(target: str) -> Edit:
    return put("train.lora", {"rank": 4, "alpha": 4, "targets": [target]})


def start(path: Path) -> Edit:
    return put("train.start_from", {"path": str(path), "revision": None, "file": None})


SD3 = CHECKPOINT.parent / "tiny-sd3" / "transformer"


@pytest.mark.parametrize(
    ("edits", "code", "message"),
    [
        ([put("model.family", "sd3")], 3, "_class_name must be StableDiffusion3Pipeline for this family"),
        ([put("model.checkpoint", "./nothing")], 3, "the folder ./nothing does not exist"),
        ([lora("to_query")], 2, "train.lora.targets: must name linear layers of FluxTransformer2DModel"),
        (
            [start(SD3)],
            3,
            f"{SD3}/config.json: in_channels must be 32 as in model.checkpoint, got 8: this is a policy of",
        ),
        ([start(SD3), lora("to_q")], 2, "train.start_from: must be an adapter where train.lora trains one"),
    ],
)
def test_refuses_settings_that_do_not_fit_the_files(edits, code, message, workspace, capsys):
    for edit in edits:
        workspace.edit(edit)
    assert message in refused(workspace, code, capsys)


def test_accepts_a_policy_of_the_model_to_start_from(workspace):
    workspace.edit(start(CHECKPOINT / "transformer"))
    assert workspace.run("inputs") == 0


@pytest.mark.parametrize("key", ["model.base_precision", "model.text_precision"])
def test_quantised_weights_need_their_package(key, workspace, capsys, monkeypatch):
    workspace.edit(lora("to_q"))
    workspace.edit(put(key, "int8"))
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "torchao.quantization", None)
        assert f"{key}: int8 needs torchao" in refused(workspace, 2, capsys)
    assert workspace.run("inputs") == 0


def test_passed_check_is_not_repeated(workspace, monkeypatch):
    assert workspace.run("inputs") == 0
    checked: list[object] = []
    monkeypatch.setattr("chunk_grpo.library.checked_model._check", checked.append)
    assert workspace.run("inputs") == 0
    assert not checked
    workspace.edit(put("generate.height", 64))
    assert workspace.run("inputs") == 0
    (workspace.root / MEMORY).unlink()
    assert workspace.run("inputs") == 0
    assert len(checked) == 2
