"""Problems of a configuration: pydantic's errors as YAML path, rule and value."""

import difflib
import json
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from chunk_grpo.errors import masked

_SHOWN = 100
"""Maximum of problems in a message; the rest is counted."""

_RULES: dict[str, str] = {
    "greater_than": "must be > {gt}",
    "greater_than_equal": "must be >= {ge}",
    "less_than": "must be < {lt}",
    "less_than_equal": "must be <= {le}",
    "multiple_of": "must be a multiple of {multiple_of}",
    "finite_number": "must be a finite number",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "string_type": "must be text",
    "bool_type": "must be true or false",
    "tuple_type": "must be a list",
    "dict_type": "must be a mapping of names",
    "model_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
    "invalid_key": "keys must be text",
    "literal_error": "must be one of {expected}",
    "union_tag_invalid": "must be one of {expected_tags}",
    "string_pattern_mismatch": "must be lower-case letters, digits, - and _, with a letter or digit first",
    "string_too_long": "must have at most {max_length} characters",
}


_REPLACED = dict.fromkeys(
    ("reward_attempts", "reward_wait"),
    "replaced by reward_away_seconds, the seconds for which a scorer may be away (900 by default); remove it",
)
"""Keys of earlier releases, and what is in their place."""


@dataclass(frozen=True)
class Problem:
    """One problem of a configuration."""

    path: tuple[str | int, ...]
    """Keys from the top, e.g. `("train", "clip_range")`; list positions are numbers."""
    text: str
    """Rule and offending value."""

    def __str__(self) -> str:
        """YAML path, then the text."""
        path = ""
        for part in self.path:
            path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
        return f"{path}: {self.text}"


def listed(source: str, problems: Sequence[Problem], advice: str) -> str:
    """The message about problems of `source`; its last line alone says what is wrong where, and what to do."""
    if len(problems) == 1:
        end = "" if problems[0].text.endswith("?") else "."
        return f"{source}: {problems[0]}{end} {advice}"
    count = f"{source}: {len(problems)} problems"
    lines = [f"  {problem}" for problem in problems[:_SHOWN]]
    more = [f"  and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else []
    return "\n".join([count, *lines, *more, f"{count}, listed above. {advice}"])


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word closest to `word`, or None if none is similar."""
    matches = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


def known_name(path: tuple[str | int, ...], name: str, section: str, known: Iterable[str]) -> Iterator[Problem]:
    """Yield a problem unless `name` is one of the `known` names in a section."""
    there = list(known)
    if name not in there:
        guess = nearest(name, there)
        hint = f"did you mean {guess!r}? " if guess else ""
        yield Problem(path, f"must be a name in {section}, got {name!r}; {hint}there are: {', '.join(there)}")


def show(value: object) -> str:
    """Format a value for a message: null, true and false as in YAML, at most 80 characters, no password of a URL."""
    text = json.dumps(value) if value is None or isinstance(value, bool) else masked(repr(_lists(value)))
    return text if len(text) <= 80 else f"{text[:77]}..."


def schema_problems(error: ValidationError, raw: Mapping[str, Any], model: type[BaseModel]) -> list[Problem]:
    """Pydantic's errors as problems; a misspelt key is not also reported as missing."""
    details = error.errors(include_url=False)
    places = [_yaml_path(detail["loc"], raw) for detail in details]
    problems = []
    explained: set[tuple[str | int, ...]] = set()
    for detail, place in zip(details, places, strict=True):
        if detail["type"] == "extra_forbidden":
            known = _keys_at(model, place[:-1], raw)
            if place[-1] in _REPLACED:
                problems.append(Problem(place, _REPLACED[str(place[-1])]))
                continue
            guess = nearest(str(place[-1]), known)
            hint = f"did you mean {guess!r}?" if guess else f"known here: {', '.join(sorted(known))}"
            problems.append(Problem(place, f"unknown key; {hint}"))
            if guess:
                explained.add((*place[:-1], guess))
    for detail, place in zip(details, places, strict=True):
        if detail["type"] == "extra_forbidden" or (detail["type"] == "missing" and place in explained):
            continue
        # Empty only because its invalid items, already reported, were dropped.
        if detail["type"] == "too_short" and detail["input"]:
            continue
        of_kind = detail["type"] in ("union_tag_invalid", "union_tag_not_found")
        problems.append(Problem((*place, "kind") if of_kind else place, _text(detail)))
    return problems


def _text(detail: Mapping[str, Any]) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind in ("missing", "union_tag_not_found"):
        return "required, but missing"
    if kind == "too_short":
        return "must not be empty"
    value = detail["input"]
    if kind == "union_tag_invalid":
        value = context["tag"]
    limits = {name: f"{limit:g}" if isinstance(limit, float) else limit for name, limit in context.items()}
    rule = _RULES[kind].format(**limits) if kind in _RULES else detail["msg"]
    return f"{rule}, got {show(value)}"


def _yaml_path(loc: Sequence[str | int], raw: Mapping[str, Any]) -> tuple[str | int, ...]:
    """`loc` without the parts that pydantic adds: union tags and the key marker."""
    path: list[str | int] = []
    here: Any = raw
    for part in loc:
        if part == "[key]":
            continue
        if isinstance(here, Mapping) and part not in here and part == here.get("kind"):
            continue
        path.append(part)
        inside = isinstance(here, Mapping) and part in here
        inside = inside or (isinstance(here, Sequence) and isinstance(part, int) and part < len(here))
        here = here[part] if inside else None
    return tuple(path)


def _keys_at(model: type[BaseModel], path: Sequence[str | int], raw: Any) -> set[str]:
    """Valid keys of the mapping at `path`."""
    here: Any = model
    for part in path:
        raw = raw[part]
        if isinstance(here, type) and issubclass(here, BaseModel):
            here = _fields(here)[str(part)].annotation
        elif isinstance(part, int):  # tuple[X, ...]
            here = typing.get_args(here)[0]
        else:  # dict[Name, X]: any name leads to an X
            here = typing.get_args(here)[1]
        here = _choose(here, raw)
    return set(_fields(here))


def _fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Fields by their keys in the file."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def _choose(annotation: Any, raw: Any) -> Any:
    """Member of a union of models selected by the `kind` of `raw`, or the annotation itself."""
    for inner in _members(annotation):
        kind = inner.model_fields.get("kind")
        if kind is None or raw.get("kind") in typing.get_args(kind.annotation):
            return inner
    return annotation


def _members(annotation: Any) -> Iterator[type[BaseModel]]:
    if typing.get_origin(annotation) is typing.Annotated:
        annotation = typing.get_args(annotation)[0]
    if isinstance(annotation, types.UnionType):
        yield from (inner for inner in typing.get_args(annotation) if hasattr(inner, "model_fields"))


def _lists(value: object) -> object:
    return [_lists(item) for item in value] if isinstance(value, tuple) else value
