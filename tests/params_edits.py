"""params.yaml with edits, and what is said about it: for the tests of the configuration's rules."""

import copy
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from ruamel.yaml import YAML

from chunk_grpo.config import parse_params
from chunk_grpo.errors import ConfigError

ROOT = Path(__file__).resolve().parents[1]
RAW: dict[str, Any] = YAML(typ="safe").load((ROOT / "params.yaml").read_text())
# The numbers that messages repeat, so that tuning the preset leaves the tests alone.
RAW["prompts"] |= {"train_count": 300, "eval_count": 96, "wise_count": 24}
RAW["train"] |= {"prompts_per_iteration": 8, "updates_per_iteration": 2, "fraction": 0.5, "seeds": [0, 1, 2]}
RAW["train"] |= {"group_size": 8}
RAW["train"]["heldout"] |= {"num_prompts": 48, "scorers": []}
RAW["generate"] |= {"num_steps": 50, "base_steps": 20}
RAW["variants"] = {
    "dance": {"objective": "step", "plan": "step"},
    "chunk": {"objective": "chunk", "plan": "listed"},
    "chunk-ws": {"objective": "chunk", "plan": "listed", "selection": "weighted"},
}
RAW["rewards"] = {"shapes-graded": 1.0, "shapes-vivid": 0.6}

Edit = Callable[[dict[str, Any]], object]
Key: TypeAlias = tuple[str | int, ...]


def problems(*edits: Edit) -> list[str]:
    """The problem lines of the message for params.yaml with some edits; none when it is accepted."""
    raw = copy.deepcopy(RAW)
    for edit in edits:
        edit(raw)
    try:
        parse_params(raw, "params.yaml")
    except ConfigError as error:
        header, *lines = str(error).splitlines()
        advice = "conf/preset/tiny.yaml describes every key."
        if not lines:
            only = header.removeprefix("params.yaml: ").removesuffix(f" {advice}")
            return [only if only.endswith("?") else only.removesuffix(".")]
        *lines, last = lines
        assert header == f"params.yaml: {len(lines)} problems"
        assert last == f"{header}, listed above. {advice}"
        return [line.removeprefix("  ") for line in lines]
    return []


def put(path: str, value: object) -> Edit:
    """Set a copy of the value at a dotted path; numbers count the items of a list."""

    def edit(raw: dict[str, Any]) -> None:
        *parents, key = path.split(".")
        here: Any = raw
        for parent in parents:
            here = here[int(parent)] if isinstance(here, list) else here[parent]
        here[int(key) if isinstance(here, list) else key] = copy.deepcopy(value)

    return edit


def drop(path: str) -> Edit:
    """Remove the key at a dotted path."""

    def edit(raw: dict[str, Any]) -> None:
        *parents, key = path.split(".")
        for parent in parents:
            raw = raw[parent]
        del raw[key]

    return edit


def only_problem(edits: dict[str, object]) -> str:
    """The one problem of params.yaml with other values at some dotted paths."""
    (found,) = problems(*(put(path, value) for path, value in edits.items()))
    return found


def paths(value: object, prefix: str = "") -> list[str]:
    """All dotted paths in a mapping, inner ones too, with the items of its lists."""
    if isinstance(value, dict):
        inside = list(value.items())
    elif isinstance(value, list):
        inside = list(enumerate(value))
    else:
        return []
    here = [f"{prefix}{key}" for key, _ in inside]
    return here + [path for key, inner in inside for path in paths(inner, f"{prefix}{key}.")]


FUZZ: list[object] = [None, True, -1, 1.5, "x", [], {}, {"kind": 3}, {1: 2}, ["x", None]]
"""Values of every kind, to stand where they should not."""


def leaves(value: Any, path: Key = ()) -> Iterator[Key]:
    """Paths of all leaf values."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    elif isinstance(value, list) and value:
        for number, inner in enumerate(value):
            yield from leaves(inner, (*path, number))
    else:
        yield path


def get(value: Any, path: Key) -> Any:
    """The value at a path."""
    for key in path:
        value = value[key]
    return value


def with_value(params: Mapping[str, Any], path: Key, value: Any) -> dict[str, Any]:
    """A copy of the parameters with another value at a path."""
    result = copy.deepcopy(dict(params))
    get(result, path[:-1])[path[-1]] = value
    return result
