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


def variant(settings: object) -> VariantParams:
    return VariantParams.model_validate_json(json.dumps(settings))


def with_variants(variants: dict[str, object]) -> Params:
    content = yaml.safe_load((ROOT / "params.yaml").read_text())
    content["train"] |= {"clip_range": 1e-4, "prompts_per_iteration": 8, "group_size": 8}
    return parse_params(content | {"variants": variants}, "params.yaml")


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_described_in_words(name: str) -> None:
    found = recipe(variant(METHODS[name]))
    assert not any(mark in found for mark in ("{", "}", "'", "_", "None", "e-0"))
    assert len(found.split(", ")) >= len(METHODS[name])  # each setting has its part


def test_controlled_variant_is_described_in_words() -> None:
    found = recipe(variant({"objective": "chunk", "plan": "listed", "controlled": True}))
    assert found == "chunk objective, plan listed, with the controller"


def test_method_descriptions_are_distinct() -> None:
    told = [recipe(variant(settings)) for settings in METHODS.values()]
    assert len(set(told)) == len(told)


@pytest.mark.parametrize(("value", "text"), [(5e-5, "5e-5"), (1e-12, "1e-12"), (0.0001, "0.0001"), (1.0, "1")])
def test_numbers_are_formatted_for_readers(value: float, text: str) -> None:
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


def test_shared_clip_range_is_the_plotted_one() -> None:
    alike = {"chunk": METHODS["chunk"], "guard": METHODS["guard"] | {"clip_range": 1e-4}}
    assert settings_from(with_variants(alike)).training.clip_range == 1e-4
