"""Changes to a preset: any part of params.yaml, checked as far as a part can be."""

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
    """What the sections of an override are made of; as `Section`, but that nothing is required."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def with_overrides(
    raw: Mapping[str, Any], overrides: BaseModel, variants: Sequence[str] | None, source: str
) -> dict[str, Any]:
    """A preset with changes.

    Mappings are merged. In a mapping of names (`variants`, `scorers`, ...) null takes an entry away.

    Args:
        raw: The preset, as YAML holds it.
        overrides: An instance of `Overrides`.
        variants: Only these are kept; None for all.
        source: What to call the result in messages.

    Returns:
        All parameters, as YAML holds them.

    Raises:
        ConfigError: They break a rule; the message tells all of them.
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
    """Overrides that draw other images, unless they say themselves from which seed."""
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
    """The model with every field left to choice."""
    described = _descriptions(model)
    fields: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        if model is Params and name == "composed_from":
            continue  # it says what was changed, so it is not changed itself
        kind = _part(field.annotation)
        for rule in field.metadata:
            kind = Annotated[kind, rule]
        # A factory: a default would stand in the schema, and a form would send it as a change.
        fields[name] = (
            kind,
            Field(default_factory=_nothing, alias=field.alias, description=described.get(name)),
        )
    return create_model(f"{model.__name__}Part", __base__=_Part, __doc__=_summary(model), **fields)


def _part(annotation: Any) -> Any:
    if annotation is bool:
        # A form sends false for a boolean that nobody has touched, but nothing for a choice.
        return Annotated[bool, WithJsonSchema({"enum": [True, False]})]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _part_of(annotation)
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _part(inner[0]) if _models(inner[0]) else annotation
    if origin in (Union, types.UnionType) and (models := _models(annotation)):
        # Which of several kinds it is can only be told together with the preset.
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
    """What the docstring says of each attribute, for forms."""
    _, _, attributes = inspect.cleandoc(model.__doc__ or "").partition("Attributes:")
    found = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", attributes, re.M)
    return {name: re.sub(r"\s+", " ", text) for name, text in found}


def _nothing() -> None:
    return None


_NAMED = frozenset({"variants", "scorers", "executors", "rewards", "plans", "benchmarks"})
"""Keys whose values are mappings of names that a user chooses."""

Overrides: TypeAlias = Annotated[_part_of(Params), BeforeValidator(tuples)]  # type: ignore[valid-type]
