"""What each key of params.yaml is: a JSON schema made of the models of this package, and rows of a table made of that.

A field is described by the docstring below it. Its last sentence may be "Source: Table 6."; without one, the value is
our choice. Docstrings are read here, and not by pydantic (`use_attribute_docstrings`), which makes every import of
this package a quarter slower.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, TypeAlias

from chunk_grpo.config.models import Params
from chunk_grpo.config.section import Section

Schema: TypeAlias = Mapping[str, Any]
Path: TypeAlias = tuple[str, ...]

OWN_NAMES: Mapping[str, str] = {"rewards": "SCORER"}
"""What stands for the user's own names under a key; under others it is NAME."""

_SOURCE = "Source: "
_TYPES: Mapping[str, str] = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
}


@dataclass(frozen=True)
class Row:
    """A key of params.yaml. All texts are Markdown."""

    key: str
    """Key from the top, with NAME or SCORER for the user's own names."""
    type: str
    """Kind of value in words; `section`: a mapping with the keys that follow."""
    range: str
    """Bounds or choices of the value; empty: any value of the type."""
    meaning: str
    """Description, without the source."""
    left_out: str
    """Value where the key is left out, or `needed`."""
    source: str
    """Where the value comes from; may be empty for sections and `kind`."""


def params_schema() -> dict[str, Any]:
    """JSON schema of params.yaml, with the docstrings of the fields as descriptions."""
    schema = Params.model_json_schema()
    definitions: dict[str, Any] = {**schema["$defs"], Params.__name__: schema}
    for model in _sections(Section):
        if (definition := definitions.get(model.__name__)) is None:  # no part of params.yaml
            continue
        texts = _docstrings(model)
        for name, value in definition["properties"].items():
            if name in texts:
                value["description"] = texts[name]
            elif name == "kind":
                value["description"] = definition["description"].partition("\n\n")[0]
            if value.get("type") == "object" and "minLength" in value:  # pydantic's word after a validator
                value["minProperties"] = value.pop("minLength")
    return schema


def rows(schema: Schema, section: str) -> Iterator[Row]:
    """Rows of a section of params.yaml, such as `train`, and of all keys in it, by the schema of `params_schema`."""
    return _Walk(schema["$defs"]).key(schema, section, ())


def values(params: Any, key: Path) -> list[Any]:
    """Distinct values at a key of parameters parsed from YAML.

    NAME and SCORER stand for every name that is there; as the last part of the key for the names themselves, with their
    values unless these are mappings.
    """
    if not key:
        return [params]
    part, rest = key[0], key[1:]
    if not isinstance(params, Mapping):
        return []
    if part not in ("NAME", *OWN_NAMES.values()):
        return values(params[part], rest) if part in params else []
    if not rest:
        return [name if isinstance(value, Mapping) else {name: value} for name, value in params.items()]
    found = [value for name in params for value in values(params[name], rest)]
    return [value for position, value in enumerate(found) if value not in found[:position]]


def show(value: Any) -> str:
    """A value as YAML in one line, without quotes around plain text."""
    if isinstance(value, str):
        return value or "''"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(show, value))}]"
    if isinstance(value, Mapping):
        inner = ", ".join(f"{name}: {show(item)}" for name, item in value.items())
        return inner if value else "{}"
    return json.dumps(value)


def _sections(model: type[Section]) -> Iterator[type[Section]]:
    for inner in model.__subclasses__():
        yield inner
        yield from _sections(inner)


def _docstrings(model: type[Section]) -> dict[str, str]:
    """Docstring of each field of a model, inherited ones too, in one line."""
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if issubclass(base, Section):
            found |= _declared(base.__module__).get(base.__name__, {})
    return found


@cache
def _declared(module: str) -> dict[str, dict[str, str]]:
    """Docstring by field, of each class of a module."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    found: dict[str, dict[str, str]] = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = {
                field.target.id: " ".join(text.value.value.split())
                for field, text in zip(node.body, node.body[1:], strict=False)
                if isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
                and isinstance(text.value.value, str)
            }
    return found


@dataclass(frozen=True)
class _Walk:
    """Walk through a schema; `path` is that of the keys above."""

    definitions: Schema

    def key(self, definition: Schema, name: str, path: Path) -> Iterator[Row]:
        """Rows of a key of a definition, and of those below it."""
        value = definition["properties"][name]
        path = (*path, name)
        outer, nullable = _without_null(value)
        held = _held(outer)
        path = path if held is None else (*path, OWN_NAMES.get(name, "NAME"))
        inner = outer if held is None else held
        members = [self.definitions[one["$ref"].rpartition("/")[2]] for one in _references(inner)]
        text = value.get("description") or " ".join(one["description"] for one in members)
        meaning, _, source = text.partition(_SOURCE)
        yield Row(
            ".".join(path),
            ("section" if members else _type(inner)) + (" or null" if nullable else ""),
            "; ".join(filter(None, ["" if members else _range(inner), _extent(outer)])),
            meaning.strip(),
            _left_out(value, needed=name in definition.get("required", ())),
            source.rstrip(".") or ("" if members or name == "kind" else "ours"),
        )
        if len(members) == 1:
            for inside in members[0]["properties"]:
                yield from self.key(members[0], inside, path)
        elif members:
            yield from self.union(members, path)

    def union(self, members: Sequence[Schema], path: Path) -> Iterator[Row]:
        """Rows of sections that `kind` tells apart; a key of several of them has one row."""
        found: dict[str, list[tuple[Path, Row]]] = {".".join((*path, "kind")): []}
        for member in members:
            kind = member["properties"]["kind"]
            kinds = tuple(kind.get("enum", [kind.get("const")]))
            for name in member["properties"]:
                for row in self.key(member, name, path):
                    found.setdefault(row.key, []).append((kinds, row))
        for key, same in found.items():
            below = key.rpartition(".")[0] in found  # its section's row names the kinds
            yield _merged(same, everywhere=below or len(same) == len(members))


def _merged(same: Sequence[tuple[Path, Row]], *, everywhere: bool) -> Row:
    """One row for a key of several kinds; where they differ, a cell names the kinds."""
    first = same[0][1]
    cells: dict[str, str] = {}
    for column in (field.name for field in fields(Row)):
        kinds: dict[str, Path] = {}
        for names, row in same:
            text = getattr(row, column)
            kinds[text] = kinds.get(text, ()) + names
        if column == "range" and first.key.endswith(".kind"):
            cells[column] = ", ".join(kinds)
        elif len(kinds) > 1 or (column == "meaning" and not everywhere):
            parts = [f"{_choices(names)}: {text}" for text, names in kinds.items() if text]
            cells[column] = (" " if column == "meaning" else "; ").join(parts)
    return replace(first, **cells)


def _without_null(value: Schema) -> tuple[Schema, bool]:
    """A value's schema without the choice of null, and whether it has that choice."""
    choices = value.get("anyOf", ())
    others = [choice for choice in choices if choice != {"type": "null"}]
    return (others[0], True) if len(others) == 1 < len(choices) else (value, False)


def _held(value: Schema) -> Schema | None:
    """Schema of the values in a mapping whose names the user chooses; None for other values."""
    for inner in value.get("patternProperties", {}).values():
        return dict(inner)
    inner = value.get("additionalProperties")
    return None if inner is None else {} if inner is True else dict(inner)


def _references(value: Schema) -> list[Schema]:
    return [value] if "$ref" in value else list(value.get("oneOf", ()))


def _type(value: Schema) -> str:
    if "anyOf" in value:
        return ", or ".join(_type(choice) for choice in value["anyOf"])
    if "items" in value:
        word = _type(value["items"])
        return f"list of {word}" + ("" if word == "text" else "s")
    if _held(value) is not None:
        return "mapping"
    return "name" if "pattern" in value else _TYPES.get(value.get("type", ""), "any")


def _range(value: Schema) -> str:
    if "anyOf" in value:
        return ", or ".join(filter(None, map(_range, value["anyOf"])))
    if "items" in value:
        inner = _range(value["items"])
        return f"each {inner}" if inner and "enum" not in value["items"] else inner
    if (held := _held(value)) is not None:
        return _range(held)
    if choices := value.get("enum", [value["const"]] if "const" in value else []):
        return _choices(choices)
    return _bounds(value)


def _extent(value: Schema) -> str:
    """`may be empty` or `not empty` for a list or a mapping whose names the user chooses; else no text."""
    if "items" not in value and _held(value) is None:
        return ""
    return "not empty" if value.get("minItems") or value.get("minProperties") else "may be empty"


def _bounds(value: Schema) -> str:
    least, above = value.get("minimum"), value.get("exclusiveMinimum")
    most, below = value.get("maximum"), value.get("exclusiveMaximum")
    if above is not None and value["type"] == "integer":
        least, above = above + 1, None
    if least is not None and most is not None:
        parts = [f"{_number(least)} to {_number(most)}"]
    else:
        bounds = ((">=", least), (">", above), ("<=", most), ("<", below))
        parts = [f"{sign} {_number(bound)}" for sign, bound in bounds if bound is not None]
    if "multipleOf" in value:
        parts.append(f"multiple of {value['multipleOf']}")
    return ", ".join(parts)


def _number(value: float) -> str:
    if value == 2**63 - 1:
        return "2^63 - 1"
    return f"{value:,}" if isinstance(value, int) and value >= 10_000 else f"{value:g}"


def _choices(choices: Iterable[object]) -> str:
    return ", ".join(f"`{choice}`" for choice in choices)


def _left_out(value: Schema, *, needed: bool) -> str:
    if needed:
        return "needed"
    default = value.get("default", {})
    return "its defaults" if isinstance(default, dict) and default else f"`{show(default)}`"
