"""What params.yaml must not hold anywhere: keys that DVC ignores, and texts that are secrets or that Hydra replaces."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from chunk_grpo.config.problems import Problem, show
from chunk_grpo.errors import has_user_info

Place: TypeAlias = tuple[str | int, ...]

HIDDEN = ("size", "nfiles")
"""Keys that DVC omits from its run-cache key, at every depth (treeverse/dvc#10296)."""

RULE = (
    f"no key may be named {' or '.join(HIDDEN)}: DVC's run cache leaves such keys out, and would restore the "
    "results of another value; choose another name"
)


def hidden_names(values: Any) -> Iterator[Problem]:
    """Yield a problem for each key, at any depth, that is in HIDDEN."""
    for path, value, is_key in texts(values):
        if is_key and value in HIDDEN:
            yield Problem(path, RULE)


def forbidden_texts(values: Any) -> Iterator[Problem]:
    """Yield a problem for each text, at any depth, that is not allowed."""
    for path, value, _ in texts(values):
        if has_user_info(value):
            yield Problem(
                path,
                "no text may hold the user or password of a URL, because messages and reports show params.yaml (an "
                f"environment variable may hold secrets), got {show(value)}",
            )
        elif not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
            yield Problem(path, f"no text may hold half a character (U+D800 to U+DFFF), got {show(value)}; remove it")
        elif "${" in value:
            yield Problem(
                path,
                "no text may hold ${, which Hydra would replace, even by a secret of the environment, in `dvc exp run "
                f"-S` and in overrides of flows; write the value itself, got {show(value)}",
            )


def texts(value: Any, path: Place = ()) -> Iterator[tuple[Place, str, bool]]:
    """Yield path and content of each text, at any depth, and whether it is a key."""
    if isinstance(value, str):
        yield path, value, False
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            if isinstance(key, str):
                yield (*path, key), key, True
            yield from texts(inner, (*path, key))
    elif isinstance(value, Sequence):
        for number, inner in enumerate(value):
            yield from texts(inner, (*path, number))
