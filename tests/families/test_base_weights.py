"""A base checkpoint whose files do not fit its networks is refused by name, before and without reading its values."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from chunk_grpo.config.families import family_names
from chunk_grpo.errors import DataError
from chunk_grpo.families.tracing.build import component_names
from tests.families.conftest import TINY, edit_json, load_flux, refused
from tests.families.parity import load, module_of

State = dict[str, Tensor]
PARTS = ("text_encoder", "text_encoder_2", "transformer", "vae")
LIBRARIES = ("text_encoder", "transformer")
"""A part of transformers, and one of diffusers."""
NAMES = ("model", "diffusion_pytorch_model")


def weights_of(part: Path) -> Path:
    return next(part.glob("*.safetensors"))


@pytest.fixture
def changed(copy: Path) -> Callable[[str, Callable[[State], State]], Path]:
    """A function that changes the weights of a part and returns their file."""

    def change(part: str, edit: Callable[[State], State]) -> Path:
        path = weights_of(copy / part)
        save_file({k: v.contiguous() for k, v in edit(load_file(path)).items()}, path)
        return path

    return change


def matrix(state: State) -> str:
    """The first linear layer."""
    return next(name for name in state if name.endswith(".weight") and state[name].ndim == 2)


def without(state: State) -> State:
    return {name: value for name, value in state.items() if name != matrix(state)}


def adapted(state: State) -> State:
    layer = matrix(state).removesuffix("weight")
    rank = {f"{layer}lora_A.default.weight": torch.zeros(2, 2), f"{layer}lora_B.default.weight": torch.zeros(2, 2)}
    return without(state) | {f"{layer}base_layer.weight": state[matrix(state)]} | rank


def scaled(state: State) -> State:
    name = matrix(state)
    return state | {
        name: state[name].to(torch.float8_e4m3fn),
        f"{name.removesuffix('weight')}scale_weight": torch.ones(1),
    }


def in_four_bits(state: State) -> State:
    name = matrix(state)
    packed = torch.zeros(state[name].numel() // 2, 1, dtype=torch.uint8)
    return state | {name: packed, f"{name}.absmax": torch.ones(4), f"{name}.quant_map": torch.ones(16)}


def prefixed(prefix: str) -> Callable[[State], State]:
    return lambda state: {prefix + name: value for name, value in state.items()}


STRANGE = [
    pytest.param(without, "weights do not fit the model: .* is missing", id="missing"),
    pytest.param(lambda state: state | {"more.weight": torch.zeros(2)}, "more.weight is unknown", id="surplus"),
    pytest.param(lambda state: state | {matrix(state): torch.zeros(3, 5)}, r"is \[3, 5\] in place of \[", id="shape"),
    pytest.param(prefixed("module."), "a wrapper around the network .*DataParallel", id="module."),
    pytest.param(prefixed("_orig_mod."), "a wrapper around the network .*torch.compile", id="_orig_mod."),
    pytest.param(prefixed("model.diffusion_model."), "names of another layout", id="one file"),
    pytest.param(adapted, "an adapter beside its layers .peft.: merge it", id="adapter"),
    pytest.param(scaled, "must not be quantised, got F8_E4M3 .*float8 weights with scales", id="float8"),
    pytest.param(
        lambda state: state | {"a.scale_weight": torch.ones(1)}, "float8 weights with scales", id="scale alone"
    ),
    pytest.param(in_four_bits, "must not be quantised, got U8 .*quantised by bitsandbytes", id="bitsandbytes"),
]


@pytest.mark.parametrize("part", LIBRARIES)
@pytest.mark.parametrize(("edit", "message"), STRANGE)
def test_error_describes_invalid_weight_file(edit, message, part, changed, copy):
    """By names and shapes alone, so that a check without values finds it too."""
    path = changed(part, edit)
    for device in ("cpu", "meta"):
        said = refused(copy, device)
        assert said.startswith(f"{path}: weights ")
        assert re.search(message, said)


@pytest.mark.parametrize(("part", "value"), [*((part, "nan") for part in PARTS), ("vae", "inf"), ("vae", "-inf")])
def test_every_value_is_finite(part, value, changed, copy):
    def last(state: State) -> State:
        state[matrix(state)].view(-1)[-1] = float(value)
        return state

    path = changed(part, last)
    assert refused(copy).startswith(f"{path}: weights must be finite, got NaN or infinity in ")
    load_flux(copy, "meta")  # no value is read there


@pytest.mark.parametrize("name", family_names())
def test_every_network_of_every_family_has_all_its_weights(name, tmp_path):
    module_of(name).random_pipeline().save_pretrained(tmp_path / "right")
    for part in component_names(name):
        folder = Path(shutil.copytree(tmp_path / "right", tmp_path / part))
        path = weights_of(folder / part)
        state = load_file(path)
        lost = sorted(state)[len(state) // 2]
        save_file({key: value for key, value in state.items() if key != lost}, path)
        with pytest.raises(DataError, match=r"do not fit the model: .* is missing"):
            load(name, folder, device="meta")
    assert {
        weight.device.type for weight in load(name, tmp_path / "right", device="meta").transformer.parameters()
    } == {"meta"}


@pytest.mark.parametrize(
    "edit",
    [
        pytest.param(lambda state: state, id="no format in the metadata"),
        pytest.param(
            lambda state: state | {"encoder.embed_tokens.weight": state["shared.weight"].clone()}, id="two names"
        ),
        pytest.param(
            lambda state: {key.replace("shared.", "encoder.embed_tokens."): value for key, value in state.items()},
            id="the other name",
        ),
        pytest.param(
            lambda state: state | {"lm_head.weight": torch.ones(3), "decoder.x.weight": torch.ones(3)}, id="whole T5"
        ),
    ],
)
def test_right_files_of_t5_load_as_ever(edit, changed, copy):
    changed("text_encoder_2", edit)
    prompts = ["a red circle", "a blue square"]
    assert torch.equal(
        load_flux(copy).encode(prompts)["prompt_embeds"], load_flux(TINY).encode(prompts)["prompt_embeds"]
    )
    load_flux(copy, "meta")


def test_one_weight_under_two_names_of_clip(changed, copy):
    """transformers would take one of them."""

    def twice(state: State) -> State:
        return state | {f"text_model.{name.removeprefix('text_model.')}": 2 * value for name, value in state.items()}

    changed("text_encoder", lambda state: {key.removeprefix("text_model."): value for key, value in state.items()})
    load_flux(copy)
    changed("text_encoder", twice)
    for device in ("cpu", "meta"):
        assert "text_model.embeddings.position_embedding.weight is unknown" in refused(copy, device)


class Code:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (Path("code-ran"),)  # type: ignore[return-value]


@pytest.mark.parametrize("part", LIBRARIES)
@pytest.mark.parametrize("decoy", [False, True])
def test_pickles_are_not_read(part, decoy, copy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = weights_of(copy / part)
    pickle = path.with_name("pytorch_model.bin" if path.stem == "model" else "diffusion_pytorch_model.bin")
    torch.save({"a": Code()}, pickle)
    path.rename(path.with_name("other.safetensors")) if decoy else path.unlink()
    assert refused(copy).startswith(
        f"{copy / part}: must hold model.safetensors or diffusion_pytorch_model.safetensors, got {pickle.name}. A "
        "pickle can run code and is not read: "
    )
    assert not Path("code-ran").exists()


def in_shards(part: Path, lie: Callable[[list[State], dict[str, str]], object]) -> Path:
    """Split the weights of a part over two files and an index, changed by `lie`."""
    path = weights_of(part)
    state = load_file(path)
    path.unlink()
    files = [f"{path.stem}-0000{number}-of-00002.safetensors" for number in (1, 2)]
    shards: list[State] = [{}, {}]
    named: dict[str, str] = {}
    for at, name in enumerate(sorted(state)):
        shards[at % 2][name], named[name] = state[name], files[at % 2]
    lie(shards, named)
    for file, shard in zip(files, shards, strict=True):
        save_file(shard, part / file, metadata={"format": "pt"})
    index = part / f"{path.name}.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": named}))
    return index


@pytest.mark.parametrize("part", LIBRARIES)
@pytest.mark.parametrize(
    "lie",
    [
        pytest.param(lambda shards, named: shards[0].popitem(), id="a shard lacks a weight"),
        pytest.param(lambda shards, named: shards[1].update(x=torch.ones(2)), id="a shard has one more"),
        pytest.param(
            lambda shards, named: shards[1].update([next(iter(shards[0].items()))]), id="a weight in two shards"
        ),
        pytest.param(lambda shards, named: named.update(x="../x.safetensors"), id="a file elsewhere"),
        pytest.param(lambda shards, named: named.update(x="x.bin"), id="a pickle"),
        pytest.param(lambda shards, named: named.update(x=3), id="a number"),
    ],
)
def test_an_index_names_what_is_there(part, lie, copy):
    """diffusers trusts it, and leaves a weight empty that only the index names."""
    index = in_shards(copy / part, lie)
    assert refused(copy).startswith(f"{index}: ")


def test_weights_in_one_file_and_in_several_are_ambiguous(copy):
    kept = Path(shutil.copy(weights_of(copy / "vae"), copy / "kept"))
    in_shards(copy / "vae", lambda shards, named: None)
    load_flux(copy)
    kept.rename(copy / "vae" / f"{NAMES[1]}.safetensors")
    assert "must hold one set of weights, got " in refused(copy)


@pytest.mark.parametrize("part", LIBRARIES)
@pytest.mark.parametrize(
    ("key", "value"),
    [("quantization_config", {"quant_method": "bitsandbytes"}), ("transformers_weights", "x.safetensors")],
)
def test_configurations_that_change_what_is_read(part, key, value, copy):
    path = copy / part / "config.json"
    edit_json(path, {key: value})
    assert refused(copy).startswith(f"{path}: {key} must be absent, got ")


def test_an_adapter_in_a_part(copy):
    """transformers would load it, on the base model that it names."""
    path = copy / "text_encoder" / "adapter_config.json"
    path.write_text('{"peft_type": "LORA", "base_model_name_or_path": "a/b"}')
    assert refused(copy).startswith(f"{path}: must be absent: ")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("vae", ["os", "system"]),
        ("transformer", "diffusers"),
        ("text_encoder_2", [None, None]),
        ("text_encoder", ["transformers", "CLIPTextModelWithProjection"]),
        ("scheduler", ["diffusers", "None"]),
        ("tokenizer", ["transformers", "BertTokenizer"]),
    ],
)
def test_an_index_of_other_classes(key, value, copy):
    path = copy / "model_index.json"
    edit_json(path, {key: value})
    assert key in refused(copy) or str(copy) in refused(copy)
