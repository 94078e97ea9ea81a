"""Changes to a preset: what may be changed, how they are merged, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError
from ruamel.yaml import YAML

from chunk_grpo.config import Overrides, Params, with_image_seed, with_overrides
from chunk_grpo.errors import ConfigError

PARAMS = Path(__file__).resolve().parents[1] / "params.yaml"
ADAPTER: TypeAdapter[Any] = TypeAdapter(Overrides)


@pytest.fixture
def raw() -> dict[str, Any]:
    return dict(YAML(typ="safe").load(PARAMS))


def changed(raw: dict[str, Any], **overrides: Any) -> dict[str, Any]:
    return with_overrides(raw, ADAPTER.validate_python(overrides), None, "preset tiny with overrides")


def test_nothing_is_changed_by_nothing(raw: dict[str, Any]) -> None:
    assert changed(raw) == raw


def test_values_are_merged_into_their_sections(raw: dict[str, Any]) -> None:
    result = changed(raw, train={"iterations": 2, "heldout": {"every": 1}}, trackers=[])
    assert result["train"] == raw["train"] | {
        "iterations": 2,
        "heldout": raw["train"]["heldout"] | {"every": 1},
    }
    assert result["trackers"] == []
    assert {key: value for key, value in result.items() if key not in ("train", "trackers")} == {
        key: value for key, value in raw.items() if key not in ("train", "trackers")
    }


def test_other_images_leave_all_other_changes_and_a_seed_of_ones_own(raw: dict[str, Any]) -> None:
    """Also those that are lists in JSON."""
    changes = ADAPTER.validate_python({"trackers": [], "train": {"seeds": [1]}})
    assert with_overrides(raw, with_image_seed(changes, 5), None, "x") == changed(
        raw, trackers=[], train={"seeds": [1]}, generate={"seed": 5}
    )
    own = ADAPTER.validate_python({"generate": {"seed": 6}})
    assert with_image_seed(own, 5) == own


def test_null_is_a_value_of_a_key_and_takes_a_name_away(raw: dict[str, Any]) -> None:
    assert changed(raw, train={"ema_decay": 0.5})["train"]["ema_decay"] == 0.5
    with_decay = changed(raw, train={"ema_decay": 0.5})
    assert changed(with_decay, train={"ema_decay": None})["train"]["ema_decay"] is None
    assert "dance" in raw["variants"]
    assert "dance" not in changed(raw, variants={"dance": None})["variants"]


def test_a_new_name_is_added_and_an_entry_of_another_kind_replaces_the_old_one(raw: dict[str, Any]) -> None:
    result = changed(
        raw,
        chunks={"plans": {"guided": {"kind": "equal", "chunk_size": 4}}},
        variants={"more": {"objective": "chunk", "plan": "guided"}},
    )
    assert raw["chunks"]["plans"]["guided"]["kind"] == "guided"
    assert result["chunks"]["plans"]["guided"] == {"kind": "equal", "chunk_size": 4}
    assert result["variants"]["more"] == {"objective": "chunk", "plan": "guided"}


def test_one_setting_of_a_scorer(raw: dict[str, Any]) -> None:
    name, settings = next(iter(raw["scorers"].items()))
    assert changed(raw, scorers={name: {"batch_size": 3}})["scorers"][name] == settings | {"batch_size": 3}


@pytest.mark.parametrize(
    ("overrides", "where"),
    [
        ({"tran": {}}, ("tran",)),
        ({"composed_from": "other"}, ("composed_from",)),
        ({"train": {"seeds": ["0"]}}, ("train", "seeds", 0)),
        ({"train": {"iterations": "2"}}, ("train", "iterations")),
        ({"variants": {"a": {"objective": "stp"}}}, ("variants", "a", "objective")),
        ({"model": {"height": 33}}, ("model", "height")),
    ],
)
def test_a_wrong_part_is_refused_alone(overrides: dict[str, Any], where: tuple[str | int, ...]) -> None:
    with pytest.raises(ValidationError) as error:
        ADAPTER.validate_python(overrides)
    assert error.value.errors()[0]["loc"] == where


def test_what_does_not_fit_the_preset_is_refused_with_every_rule(raw: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"(?s)preset tiny with overrides: .*variants\.more\.plan.*nowhere"):
        changed(raw, variants={"more": {"objective": "step", "plan": "nowhere"}})


def test_every_section_has_a_form_with_descriptions() -> None:
    schema = ADAPTER.json_schema()
    assert set(schema["properties"]) == set(Params.model_fields) - {"composed_from"}
    train = schema["$defs"]["TrainParamsPart"]
    assert train["properties"]["iterations"]["description"] == "rollouts of the policy."
    assert "default" not in train["properties"]["iterations"]
    assert "required" not in train


def test_only_some_variants(raw: dict[str, Any]) -> None:
    nothing = ADAPTER.validate_python({})
    assert list(with_overrides(raw, nothing, ["chunk", "dance"], "p")["variants"]) == ["chunk", "dance"]
    with pytest.raises(ConfigError, match=r"p: variants must be of dance, chunk, chunk-ws, got other"):
        with_overrides(raw, nothing, ["chunk", "other"], "p")
    with pytest.raises(ConfigError, match="variants"):
        with_overrides(raw, nothing, [], "p")
