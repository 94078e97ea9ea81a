"""Overrides of parameters: how they are applied, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError
from ruamel.yaml import YAML

from chunk_grpo.config import Params
from chunk_grpo.errors import ConfigError
from chunk_grpo.orchestration.presets import Override, overridden

PARAMS = Path(__file__).resolve().parents[1] / "params.yaml"
ADAPTER: TypeAdapter[Any] = TypeAdapter(tuple[Override, ...])


@pytest.fixture
def raw() -> dict[str, Any]:
    found = dict(YAML(typ="safe").load(PARAMS))
    found["variants"] = {"dance": {"objective": "step", "plan": "step"}, **found["variants"]}
    return found


def changed(raw: dict[str, Any], *overrides: str, variants: list[str] | None = None) -> dict[str, Any]:
    return overridden(raw, ADAPTER.validate_python(overrides), variants, "preset tiny, changed")


def test_overrides_change_their_keys_alone(raw: dict[str, Any]) -> None:
    before = str(raw)
    result = changed(raw, "train.iterations=2", "train.heldout.every=1", "trackers=[]", "variants.chunk-ws.plan=step")
    assert result["train"] == raw["train"] | {"iterations": 2, "heldout": raw["train"]["heldout"] | {"every": 1}}
    assert result["trackers"] == []
    assert result["variants"]["chunk-ws"]["plan"] == "step"
    assert [key for key in raw if result[key] != raw[key]] == ["variants", "train", "trackers"]
    assert list(result) == list(raw)
    assert str(raw) == before


def test_null_is_a_value_a_tilde_removes_a_plus_adds_and_the_last_one_holds(raw: dict[str, Any]) -> None:
    assert changed(raw) == raw
    assert changed(raw, "generate.seed=5", "generate.seed=6")["generate"]["seed"] == 6
    plan = "chunks.plans.guided"
    result = changed(raw, f"~{plan}", f"+{plan}={{kind: equal, chunk_size: 4}}")
    assert result["chunks"]["plans"]["guided"] == {"kind": "equal", "chunk_size": 4}
    with_decay = changed(raw, "train.ema_decay=0.5")
    assert with_decay["train"]["ema_decay"] == 0.5
    assert changed(with_decay, "train.ema_decay=null")["train"]["ema_decay"] is None
    assert "dance" not in changed(raw, "~variants.dance")["variants"]


@pytest.mark.parametrize("override", ["tran.iterations=2", "composed_from=other", "preset=smoke", "", "=2"])
def test_an_override_begins_with_a_section(override: str, raw: dict[str, Any]) -> None:
    """Prefect checks the pattern before it creates a run."""
    pattern = ADAPTER.json_schema()["items"]["pattern"]
    assert all(f"|{name}" in pattern.replace("(", "|") for name in Params.model_fields if name != "composed_from")
    with pytest.raises(ValidationError, match="should match pattern"):
        changed(raw, override)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.iteration=2", "overrides: Could not override 'train.iteration'"),
        ("~variants.other", "overrides: Could not delete"),
        ("train.seeds=[0", "overrides: "),
        ("report.title=${nothing}", "overrides: Interpolation key 'nothing' not found"),
        ("train.iterations=two", "train.iterations: must be a whole number, got 'two'"),
        ("+variants.more={objective: step, plan: nowhere}", "variants.more.plan: .*nowhere"),
    ],
)
def test_rejects_invalid_override(override: str, message: str, raw: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"(?s)preset tiny, changed: .*{message}"):
        changed(raw, override)


def test_only_some_variants(raw: dict[str, Any]) -> None:
    assert list(changed(raw, variants=["chunk-ws", "dance"])["variants"]) == ["chunk-ws", "dance"]
    with pytest.raises(ConfigError, match=r"changed: variants must be of dance, chunk-ws, nft, got other"):
        changed(raw, variants=["chunk-ws", "other"])
    with pytest.raises(ConfigError, match="variants"):
        changed(raw, variants=[])
