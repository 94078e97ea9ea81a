"""The presets of conf/, composed the way DVC composes them."""

import json
from pathlib import Path

import pytest
from dvc.utils.hydra import compose_and_dump
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML

from chunk_grpo.config import Params, load_params, parse_params, read_raw_params
from chunk_grpo.config.models import ListedPlan
from chunk_grpo.config.notices import filled_in

ROOT = Path(__file__).resolve().parents[1]
EDITORS = Draft202012Validator(json.loads((ROOT / "conf" / "params.schema.json").read_text("utf-8")))
PRESETS = sorted(path.stem for path in (ROOT / "conf" / "preset").glob("*.yaml"))


def compose(preset: str, folder: Path, *overrides: str) -> Path:
    """Content of params.yaml after `make params PRESET=NAME`."""
    output = folder / f"{preset}.yaml"
    config, plugins = str(ROOT / "conf"), str(ROOT)
    compose_and_dump(output, config, None, "config", plugins, [f"preset={preset}", *overrides])
    return output


def load(preset: str, folder: Path) -> Params:
    return load_params(compose(preset, folder))


def test_the_committed_parameters_are_the_composition_of_tiny(tmp_path: Path) -> None:
    assert (ROOT / "params.yaml").read_text() == compose("tiny", tmp_path).read_text()


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_is_valid_here_and_in_editors_and_knows_its_name(preset: str, tmp_path: Path) -> None:
    raw = read_raw_params(compose(preset, tmp_path))
    params = parse_params(raw)
    assert params.composed_from == preset
    assert list(filled_in(params)) == []  # presets list every key
    assert [error.message for error in EDITORS.iter_errors(raw)] == []


@pytest.mark.parametrize("preset", PRESETS)
def test_ratios_in_bfloat16_do_not_carry_the_rollouts_rounding(preset: str, tmp_path: Path) -> None:
    params = load(preset, tmp_path)
    assert params.model.dtype == "float32" or params.train.old_log_probs == "training"


@pytest.mark.parametrize(
    ("path", "value"),
    [("train.group_size", 1), ("train.groupsize", 16), ("model.dtype", "float16"), ("scorers.one", {"kind": "clip"})],
)
def test_editors_mark_an_error(path: str, value: object, tmp_path: Path) -> None:
    params = YAML(typ="safe").load(compose("tiny", tmp_path))
    section, key = path.split(".")
    params[section][key] = value
    assert [error.absolute_path[0] for error in EDITORS.iter_errors(params)] == [section]


def test_flux_dev_holds_the_values_of_table_6(tmp_path: Path) -> None:
    params = load("flux-dev", tmp_path)
    train, gpus, batch_size, accumulation = params.train, 8, 2, 12
    assert (train.learning_rate, train.weight_decay, train.max_grad_norm) == (1e-5, 1e-4, 0.01)
    assert (train.clip_range, train.fraction, train.iterations, train.group_size) == (5e-5, 0.5, 150, 12)
    assert train.prompts_per_iteration == gpus * batch_size
    assert train.updates_per_iteration == batch_size * train.group_size // accumulation
    assert (params.model.height, params.model.width) == (720, 720)
    assert (params.sampling.num_steps, params.sampling.shift, params.sampling.eta) == (17, 3.0, 0.7)
    listed = params.chunks.plans["listed"]
    assert isinstance(listed, ListedPlan)
    assert listed.sizes == (2, 3, 4, 7)  # App. B.1
    assert (params.generate.num_steps, params.generate.base_steps) == (50, 20)  # App. B.3


def test_sd35_medium_holds_the_values_of_tempflow_grpo_and_flow_grpo(tmp_path: Path) -> None:
    """TempFlow-GRPO, Sec. 5; flow_grpo, config/grpo.py."""
    tempflow, flow = load("sd35-medium", tmp_path), load("sd35-medium-flow-grpo", tmp_path)
    for params in (tempflow, flow):
        train, sampling = params.train, params.sampling
        assert (params.model.height, params.model.width) == (512, 512)
        assert (train.prompts_per_iteration, train.group_size, train.updates_per_iteration) == (48, 24, 2)
        assert (train.learning_rate, train.clip_range, train.max_grad_norm) == (3e-4, 1e-4, 1.0)
        assert (sampling.num_steps, sampling.shift, sampling.eta, sampling.cfg_scale) == (10, None, 0.7, 4.5)
        assert params.rewards == {"pickscore": 1.0}
        assert (train.ema_decay, train.ema_warmup) == (pytest.approx(0.9 ** (1 / 8), abs=1e-3), True)
        assert train.lora is not None and (train.lora.rank, train.lora.alpha) == (32, 64.0)
    assert (tempflow.train.kl_coef, flow.train.kl_coef) == (0.001, 0.01)
    assert (tempflow.train.guidance_gradient, flow.train.guidance_gradient) == ("both", "conditional")
    assert flow.variants["flow-grpo"].advantage_std == "global"
