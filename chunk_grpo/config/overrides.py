"""Overrides of a preset: any part of params.yaml, with the checks that a part allows."""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, TypeAlias, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, WithJsonSchema, create_model

from chunk_grpo.config.load import parse_params, tuples
from chunk_grpo.config.models import Params
from chunk_grpo.errors import ConfigError


class _Part(BaseModel):
    """Base model of override sections: like `Section`, without required fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def with_overrides(
    raw: Mapping[str, Any], overrides: BaseModel, variants: Sequence[str] | None, source: str
) -> dict[str, Any]:
    """Apply overrides to a preset.

    Mappings are merged. In a mapping of names (`variants`, `scorers`, ...) null removes an entry.

    Args:
        raw: The preset, parsed from YAML.
        overrides: An instance of `Overrides`.
        variants: Names of the variants to keep; None: all.
        source: Name of the result in messages.

    Returns:
        All parameters, as parsed from YAML.

    Raises:
        ConfigError: The result breaks rules; the message lists all of them.
    """
    merged: dict[str, Any] = _merged(
        raw, overrides.model_dump(mode="json", exclude_unset=True, by_alias=True)
    )
    known = parse_params(merged, source).variants
    if variants is not None:
        if unknown := [name for name in variants if name not in known]:
            raise ConfigError(f"{source}: variants must be of {', '.join(known)}, got {', '.join(unknown)}")
        merged["variants"] = {name: merged["variants"][name] for name in variants}
        parse_params(merged, source)
    return merged


def with_image_seed(overrides: Overrides, seed: int) -> Overrides:
    """Overrides with `generate.seed` set to `seed`, unless they set it already."""
    values = overrides.model_dump(mode="json", exclude_unset=True, by_alias=True)
    values["generate"] = {"seed": seed} | values.get("generate", {})
    return TypeAdapter(Overrides).validate_python(values)


def _merged(base: Any, changes: Any, named: bool = False) -> Any:
    if not (isinstance(base, Mapping) and isinstance(changes, Mapping)):
        return changes
    another_kind = changes.get("kind", base.get("kind")) != base.get("kind")
    result = {} if another_kind else dict(base)
    for key, value in changes.items():
        if value is None and named:
            result.pop(key, None)
        else:
            result[key] = _merged(base.get(key), value, key in _NAMED)
    return result


@cache
def _part_of(model: type[BaseModel]) -> type[BaseModel]:
    """The model with all fields optional."""
    described = _descriptions(model)
    fields: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        if model is Params and name == "composed_from":
            continue  # names the preset, so it cannot be overridden
        kind = _part(field.annotation)
        for rule in field.metadata:
            kind = Annotated[kind, rule]
        # A factory, because a default would appear in the schema and forms would send it as a change.
        fields[name] = (
            kind,
            Field(default_factory=_nothing, alias=field.alias, description=described.get(name)),
        )
    return create_model(f"{model.__name__}Part", __base__=_Part, __doc__=_summary(model), **fields)


def _part(annotation: Any) -> Any:
    if annotation is bool:
        # Forms send false for an untouched checkbox, but nothing for an untouched choice.
        return Annotated[bool, WithJsonSchema({"enum": [True, False]})]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _part_of(annotation)
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _part(inner[0]) if _models(inner[0]) else annotation
    if origin in (Union, types.UnionType) and (models := _models(annotation)):
        # The kind may come from the preset, so the fields cannot be checked here.
        whole = dict[str, Any] if len(models) > 1 else _part(models[0])
        return whole | None if type(None) in inner else whole
    if origin is dict:
        return dict[inner[0], _part(inner[1]) | None]  # type: ignore[misc,valid-type]
    return annotation


def _models(annotation: Any) -> list[type[BaseModel]]:
    return [kind for kind in get_args(annotation) if isinstance(kind, type) and issubclass(kind, BaseModel)]


def _summary(model: type[BaseModel]) -> str:
    return inspect.cleandoc(model.__doc__ or "").partition("\n")[0]


def _descriptions(model: type[BaseModel]) -> dict[str, str]:
    """Description of each attribute from the docstring, for forms."""
    _, _, attributes = inspect.cleandoc(model.__doc__ or "").partition("Attributes:")
    found = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", attributes, re.M)
    return {name: re.sub(r"\s+", " ", text) for name, text in found}


def _nothing() -> None:
    return None


_NAMED = frozenset({"variants", "scorers", "executors", "rewards", "plans", "benchmarks"})
"""Keys whose values are mappings with names chosen by the user."""

Overrides: TypeAlias = Annotated[_part_of(Params), BeforeValidator(tuples)]  # type: ignore[valid-type]
