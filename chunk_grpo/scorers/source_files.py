"""The files behind a scorer of the user's own: its module, and what that imports of the user's own code."""

from __future__ import annotations

import ast
import hashlib
import json
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import entry_points
from pathlib import Path

ENTRY_POINTS = "chunk_grpo.scorers"
"""Group of entry points by which an installed package offers scorers."""

_OURS = ("chunk_grpo", "stages")
"""A version of its own says what a scorer gets from this package."""


def offered_sources() -> dict[str, str]:
    """The scorers that installed packages offer: name of the entry point to module:attribute."""
    return {point.name: f"{point.module}:{point.attr}" for point in entry_points(group=ENTRY_POINTS)}


def module_of(source: str) -> str:
    """The module that a scorer's `source` names, by an entry point or as module:attribute."""
    return offered_sources().get(source, source).partition(":")[0]


def source_digest(source: str, files: Sequence[str], digest: Callable[[str], str | None]) -> str:
    """A digest of all code and files behind a scorer of the user's own.

    Args:
        source: As in params.yaml.
        files: Files and folders that it reads, as params.yaml names them.
        digest: Digest of the content at a path; None: there is none.

    Returns:
        Sixteen hexadecimal digits. Paths are no part of them: the same code elsewhere is the same scorer.
    """
    modules = [(name, digest(str(path))) for name, path in sorted(source_files(module_of(source)).items())]
    content = [modules, [digest(path) for path in files]]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def source_files(module: str) -> dict[str, Path]:
    """A module, the packages that hold it, and what these import of the user's own code, at any remove.

    Nothing is imported. A module counts as the user's own when it lies in none of the interpreter's folders; of an
    installed module, the modules of the same distribution count. Imports that a string names at run time are not seen.

    Args:
        module: Its full name.

    Returns:
        Name of each module to its file; empty when there is no such module.
    """
    found: dict[str, Path] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in found or name.partition(".")[0] in _OURS:
            continue
        spec = _spec(name)
        if spec is None or spec.origin is None or not _counts(spec, module):
            continue
        found[name] = Path(spec.origin)
        waiting += _parents(name)
        if spec.origin.endswith(".py"):
            waiting += _imports(
                name, Path(spec.origin), is_package=spec.submodule_search_locations is not None
            )
    return found


def _counts(spec: ModuleSpec, module: str) -> bool:
    assert spec.origin is not None
    if spec.origin in ("built-in", "frozen"):
        return False
    same = spec.name.partition(".")[0] == module.partition(".")[0]
    return same or not any(Path(spec.origin).is_relative_to(folder) for folder in _installed_folders())


@cache
def _installed_folders() -> frozenset[Path]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return frozenset(Path(sysconfig.get_path(name)).resolve() for name in names)


def _spec(name: str) -> ModuleSpec | None:
    """Where a module is, without importing the packages that hold it."""
    path: Sequence[str] | None = None
    spec: ModuleSpec | None = None
    full = ""
    for part in name.split("."):
        full = f"{full}.{part}" if full else part
        if full in sys.builtin_module_names:
            return None
        spec = PathFinder.find_spec(full, path)
        if spec is None:
            return None
        path = list(spec.submodule_search_locations or ())
    return spec


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:depth]) for depth in range(1, len(parts))]


def _imports(name: str, file: Path, *, is_package: bool) -> Iterator[str]:
    """Names of all modules that a file may import; of `from a import b`, a.b too."""
    try:
        tree = ast.parse(file.read_bytes())
    except SyntaxError:
        return  # importing it says so
    package = name if is_package else name.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _base(package, node.level, node.module)
            yield from filter(None, [base])
            yield from (f"{base}.{alias.name}" if base else alias.name for alias in node.names)


def _base(package: str, level: int, module: str | None) -> str:
    """The module that a relative or absolute `from` names."""
    if level == 0:
        return module or ""
    parts = package.split(".")
    parts = parts[: len(parts) - level + 1]
    return ".".join([*parts, *([module] if module else [])])
