"""Descriptions of variants, and settings of training derived from them."""

import json
from pathlib import Path

import pytest
import yaml

from chunk_grpo.config import Params, VariantParams, parse_params
from chunk_grpo.reporting.inputs import settings_from
from chunk_grpo.reporting.variant_summary import recipe, short

ROOT = Path(__file__).resolve().parents[2]
METHODS = yaml.safe_load((ROOT / "conf/variants/methods.yaml").read_text())["variants"]
"""The variants of the preset `methods`."""

WORDS = {
    "dance-grpo": "step objective, plan step, Dance-SDE steps, eta 0.3",
    "flow-grpo": "step objective, plan step, KL coefficient 0.01, global standard deviation of the rewards",
    "chunk": "chunk objective, plan listed",
    "chunk-single": "chunk objective, plan single, fraction 1",
    "chunk-ws": "chunk objective, plan listed, selection weighted",
    "chunk-first": "chunk objective, plan listed, fraction 1, only chunk 0 trained",
    "control": "step objective, plan listed, step weights chunk-size",
    "chunk-dynamic": "chunk objective, plan guided-3, plan recomputed every 2 iterations",
    "chunk-clip": "chunk objective, plan listed, clip ranges [5e-5, 0.0001, 0.0002, 0.0004] by chunk",
    "chunk-rewards": "chunk objective, plan listed, rewards by chunk (chunk 0: 1 × shapes-graded; chunk 1: "
    "1 × shapes-graded; chunk 2: 1 × shapes-graded + 0.6 × shapes-vivid; chunk 3: 1 × shapes-vivid)",
    "chunk-advantages": "chunk objective, plan listed, rewards combined by advantages",
    "tempflow": "step objective, plan step, fraction 1, step weights noise, branches at 4 steps with 4 children each",
    "mixgrpo": "step objective, plan step, fraction 1, noise in a window of 4 steps that moves by 1 every iteration",
    "cps": "chunk objective, plan listed, CPS steps, eta 0.7",
    "guard": "step objective, plan step, clip range 4e-6, ratio norm guard",
}


def variant(settings: object) -> VariantParams:
    return VariantParams.model_validate_json(json.dumps(settings))


def with_variants(variants: dict[str, object]) -> Params:
    content = yaml.safe_load((ROOT / "params.yaml").read_text())
    return parse_params(content | {"variants": variants}, "params.yaml")


@pytest.mark.parametrize("name", WORDS)
def test_a_variant_in_words(name: str) -> None:
    assert recipe(variant(METHODS[name])) == WORDS[name]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_told_in_words(name: str) -> None:
    found = recipe(variant(METHODS[name]))
    assert not any(mark in found for mark in ("{", "}", "'", "_", "None", "e-0"))
    assert len(found.split(", ")) >= len(METHODS[name])  # each setting has its part


def test_methods_are_told_apart() -> None:
    told = [recipe(variant(settings)) for settings in METHODS.values()]
    assert len(set(told)) == len(told)


def test_several_chunks_and_rarer_moves() -> None:
    settings = {"objective": "chunk", "plan": "listed", "train_chunks": [0, 1, 3], "replan_every": 1}
    assert recipe(variant(settings)).endswith(
        "only chunks 0, 1 and 3 trained, plan recomputed every iteration"
    )
    window = {"objective": "step", "plan": "step", "window": {"num_steps": 1, "stride": 1, "every": 3}}
    assert recipe(variant(window)).endswith("noise in a window of 1 step that moves by 1 every 3 iterations")


@pytest.mark.parametrize(
    ("value", "text"), [(5e-5, "5e-5"), (1e-12, "1e-12"), (0.0001, "0.0001"), (1.0, "1")]
)
def test_numbers_as_one_writes_them(value: float, text: str) -> None:
    assert short(value) == text


def test_clip_ranges_and_images_are_the_variants_own() -> None:
    found = settings_from(
        with_variants({name: METHODS[name] for name in ("chunk", "chunk-clip", "guard", "tempflow")})
    ).training
    assert found.clip_ranges == {
        "chunk": (1e-4,), "chunk-clip": (5e-5, 1e-4, 2e-4, 4e-4), "guard": (4e-6,), "tempflow": (1e-4,),
    }  # fmt: skip
    assert found.clip_range is None
    assert found.images == {"chunk": 64, "chunk-clip": 64, "guard": 64, "tempflow": 256}  # 8 x 8, x 4 points


def test_a_clip_range_of_all_is_that_of_the_dashed_line() -> None:
    alike = {"chunk": METHODS["chunk"], "guard": METHODS["guard"] | {"clip_range": 1e-4}}
    assert settings_from(with_variants(alike)).training.clip_range == 1e-4
