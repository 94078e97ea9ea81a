"""Adapters that peft itself has written: read as peft computes, or refused by the setting's name."""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

from chunk_grpo.errors import DataError
from chunk_grpo.families.models.flux import FluxFamily
from chunk_grpo.families.weights.adapter_file import PEFT_WEIGHTS
from chunk_grpo.families.weights.adapter_settings import _FORMULA, _NO_EFFECT, _STARTS, check_settings, scale_of
from tests.families.conftest import edit_json, of_peft, velocity

Load = Callable[[], FluxFamily]


READ: dict[str, dict[str, Any]] = {
    "plain": {},
    "rslora": {"use_rslora": True},
    "ranks": {"rank_pattern": {"to_q": 2}},
    "alphas": {"alpha_pattern": {r"single_transformer_blocks\.\d+\.attn\.to_q": 1, "^proj_out": 2}},
    "ranks, alphas, rslora": {"rank_pattern": {"to_q": 2}, "alpha_pattern": {"to_q": 5}, "use_rslora": True},
    "dora": {"use_dora": True},
    "dropout": {"lora_dropout": 0.5},
    "some layers": {"target_modules": ["to_q"], "layers_to_transform": [0], "layers_pattern": "transformer_blocks"},
    "regular expression": {"target_modules": r".*attn\.to_[qk]"},
    "all-linear": {"target_modules": "all-linear", "exclude_modules": ["proj_out"]},
    "parameters": {"target_modules": [], "target_parameters": ["transformer_blocks.0.attn.to_q.weight"]},
    "gaussian": {"init_lora_weights": "gaussian"},
    "orthogonal": {"init_lora_weights": "orthogonal", "r": 4},
    "mica": {"init_lora_weights": "mica"},
    "not initialised": {"init_lora_weights": False},
}


@pytest.mark.parametrize("settings", READ)
def test_an_adapter_of_peft_gives_the_same_velocities(settings, tiny, tmp_path):
    expected = of_peft(tiny(), tmp_path, **READ[settings])
    for path in (tmp_path, tmp_path / PEFT_WEIGHTS):
        assert torch.allclose(velocity(tiny().with_transformer(path)), expected, atol=1e-5)
    assert not torch.allclose(velocity(tiny()), expected, atol=1e-3)


def test_a_file_of_peft_with_another_name_has_the_settings_beside_it(tiny: Load, tmp_path: Path) -> None:
    expected = of_peft(tiny(), tmp_path)
    (tmp_path / PEFT_WEIGHTS).rename(tmp_path / "mine.safetensors")
    assert torch.allclose(velocity(tiny().with_transformer(tmp_path / "mine.safetensors")), expected, atol=1e-6)


@pytest.mark.parametrize("start", ["pissa", "pissa_niter_2", "olora"])
def test_refuses_initialisation_that_changes_base_model(start, tiny, tmp_path):
    """peft changes the base model in the same way again; here it would be another one."""
    of_peft(tiny(), tmp_path, init_lora_weights=start)
    with pytest.raises(DataError, match=rf"adapter_config\.json: init_lora_weights must be .* got '{start}'"):
        tiny().with_transformer(tmp_path)


def test_reads_pissa_adapter_converted_by_peft(tiny: Load, tmp_path: Path) -> None:
    family = tiny()
    model = get_peft_model(family.transformer, LoraConfig(r=3, target_modules=["to_q"], init_lora_weights="pissa"))
    model.peft_config["default"].init_lora_weights = True
    model.save_pretrained(tmp_path / "start")
    model.peft_config["default"].init_lora_weights = "pissa"
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_" in name:
                weight.add_(0.1 * torch.randn(weight.shape))
    expected = velocity(family.using(model.get_base_model())).detach()
    model.save_pretrained(tmp_path / "out", path_initial_model_for_weight_conversion=str(tmp_path / "start"))
    assert torch.allclose(velocity(tiny().with_transformer(tmp_path / "out")), expected, atol=1e-4)


KINDS = {
    "LOHA": peft.LoHaConfig(r=2, target_modules=["to_q"]),
    "LOKR": peft.LoKrConfig(r=2, target_modules=["to_q"]),
    "OFT": peft.OFTConfig(oft_block_size=4, target_modules=["to_q"]),
    "HRA": peft.HRAConfig(r=2, target_modules=["to_q"]),
    "VERA": peft.VeraConfig(r=2, target_modules=["to_q"]),
    "FOURIERFT": peft.FourierFTConfig(n_frequency=4, target_modules=["to_q"]),
    "ADALORA": peft.AdaLoraConfig(target_modules=["to_q"], total_step=10),
    "IA3": peft.IA3Config(target_modules=["to_q"], feedforward_modules=[]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_error_names_unsupported_adapter_kind(kind, tiny, tmp_path):
    get_peft_model(tiny().transformer, KINDS[kind]).save_pretrained(tmp_path)
    with pytest.raises(DataError, match=rf"adapter_config\.json: an adapter of kind {kind}; only"):
        tiny().with_transformer(tmp_path)


@pytest.mark.parametrize("start", ["corda", "loftq", "lora_ga", "PiSSA", "of a later release", 2, ["pissa"]])
def test_refuses_initialisation_outside_allowed_list(start):
    with pytest.raises(DataError, match="init_lora_weights must be one of"):
        check_settings({"init_lora_weights": start}, "here")


def test_each_start_of_peft_is_known_to_change_the_base_model_or_not():
    (field,) = (field for field in dataclasses.fields(LoraConfig) if field.name == "init_lora_weights")
    named = set(re.findall(r"'([^']+)'", str(field.type)))
    changing = {"pissa", "pissa_niter_[number of iters]", "olora", "corda", "loftq"}
    assert named == changing | set(_STARTS[2:])


OTHERS = [f.name for f in dataclasses.fields(LoraConfig) if f.name not in _FORMULA + _NO_EFFECT]


@pytest.mark.parametrize("name", [*OTHERS, "setting_of_a_later_release"])
def test_any_other_setting_must_have_its_default(name):
    with pytest.raises(DataError, match=rf"here: {name} must be .*, got 'else'"):
        check_settings({"peft_type": "LORA", name: "else"}, "here")
    for nothing in (None, False, {}, []):
        check_settings({name: nothing}, "here")


def test_the_defaults_of_peft_are_read():
    check_settings({k: v for k, v in LoraConfig().to_dict().items() if k != "runtime_config"}, "here")


DAMAGED: dict[str, dict[str, Any]] = {
    "r must be the rank of to_q": {"r": 4},
    "rank and alpha of to_q cannot be read": {"lora_alpha": "many"},
    "rank and alpha of to_q cannot be read .*": {"rank_pattern": [1]},
    "rank and alpha of to_q cannot be read .*unterminated": {"alpha_pattern": {"[": 1}},
    "lora_alpha of to_q must be a finite number other than 0, got 0": {"lora_alpha": 0},
    "lora_alpha of to_q must be a finite number other than 0, got nan": {"lora_alpha": float("nan")},
    "rank and alpha of to_q cannot be read .*too large": {"lora_alpha": 10**400},
}


@pytest.mark.parametrize("message", DAMAGED)
def test_damaged_settings(message):
    with pytest.raises(DataError, match=f"here: {message}"):
        scale_of({"r": 8} | DAMAGED[message], "to_q", 8, "here")
    with pytest.raises(DataError, match="here: use_rslora must be true or false, got 'false'"):
        check_settings({"use_rslora": "false"}, "here")


def settings(**values: Any) -> Callable[[Path], object]:
    """Other values in the file of settings."""

    def edit(folder: Path) -> None:
        path = folder / "adapter_config.json"
        edit_json(path, values)

    return edit


def text(content: str) -> Callable[[Path], object]:
    return lambda folder: (folder / "adapter_config.json").write_bytes(content.encode("utf-8", "surrogateescape"))


def with_a_whole_layer(folder: Path) -> None:
    weights = load_file(folder / PEFT_WEIGHTS)
    save_file(weights | {"base_model.model.x_embedder.weight": torch.ones(1)}, folder / PEFT_WEIGHTS)


UNREAD = r"adapter_config\.json: settings of the adapter cannot be read"
PAIRS: dict[str, tuple[bool, Callable[[Path], object], str]] = {
    "no settings": (False, lambda folder: (folder / "adapter_config.json").unlink(), UNREAD),
    "empty": (False, text(""), UNREAD),
    "a list": (False, text("[]"), UNREAD),
    "null": (False, text("null"), UNREAD),
    "no UTF-8": (False, text("\udcff"), UNREAD),
    "no kind": (False, text('{"r": 3}'), r"adapter_config\.json: peft_type must"),
    "DoRA without its vectors": (False, settings(use_dora=True), r"use_dora must tell .* \(false\), got True"),
    "vectors of DoRA alone": (True, settings(use_dora=False), r"use_dora must tell .* \(true\), got False"),
    "another rank": (False, settings(r=4), r"r must be the rank of .*, 3, got 4"),
    "a whole layer": (False, with_a_whole_layer, r"x_embedder\.weight of no known kind"),
}


@pytest.mark.parametrize("kind", PAIRS)
def test_a_damaged_pair_of_files(kind, tiny, tmp_path):
    is_dora, damage, message = PAIRS[kind]
    of_peft(tiny(), tmp_path, use_dora=is_dora)
    damage(tmp_path)
    with pytest.raises(DataError, match=message):
        tiny().with_transformer(tmp_path)
