"""Overrides as strings of Hydra's grammar, from a part of params.yaml."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

NAMED = ("variants", "scorers", "executors", "rewards", "plans", "benchmarks")
"""Mappings of names, in which null removes an entry."""


def override_strings(changes: Mapping[str, Any], path: tuple[str, ...] = ()) -> list[str]:
    """One string per changed value."""
    return list(_strings(changes, path))


def _strings(changes: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    for key, value in changes.items():
        here = (*path, key)
        if isinstance(value, Mapping):
            yield from _strings(value, here)
        elif value is None and path and path[-1] in NAMED:
            yield f"~{'.'.join(here)}"
        else:
            yield f"++{'.'.join(here)}={json.dumps(value)}"


def with_override_strings(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of a flow run, with `overrides` as strings, if they are a part of params.yaml."""
    given = parameters.get("overrides")
    return {**parameters, **({"overrides": override_strings(given)} if isinstance(given, Mapping) else {})}
