"""Forbidden names of keys in params.yaml: DVC would not detect changes of their values."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from chunk_grpo.config.problems import Problem

HIDDEN = ("size", "nfiles")
"""Keys that DVC omits from its run-cache key, at every depth (treeverse/dvc#10296)."""

RULE = (
    f"no key may be named {' or '.join(HIDDEN)}: DVC's run cache leaves such keys out, and would restore the "
    "results of another value; choose another name"
)


def hidden_names(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[Problem]:
    """Yield a problem for each key, at any depth, that is in HIDDEN."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key in HIDDEN:
                yield Problem((*path, key), RULE)
            yield from hidden_names(inner, (*path, key))
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for number, inner in enumerate(value):
            yield from hidden_names(inner, (*path, number))
