"""Source files of an external scorer: its module and the user code that it imports."""

from __future__ import annotations

import ast
import hashlib
import json
import pkgutil
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.metadata import entry_points
from pathlib import Path

ENTRY_POINTS = "chunk_grpo.scorers"
"""Entry point group through which installed packages offer scorers."""

_OURS = ("chunk_grpo", "stages")
"""Top-level packages of this project; not digested."""


def offered_sources() -> dict[str, str]:
    """Scorers of installed packages: entry point name to module:attribute."""
    return {point.name: f"{point.module}:{point.attr}" for point in entry_points(group=ENTRY_POINTS)}


def module_of(source: str) -> str:
    """Module of a scorer's `source`, which is an entry point or module:attribute."""
    return offered_sources().get(source, source).partition(":")[0]


def source_digest(source: str, files: Sequence[str], digest: Callable[[str], str | None]) -> str:
    """Digest of all code and files of an external scorer.

    Args:
        source: `source` of the scorer in params.yaml.
        files: Files and folders that the scorer reads, as in params.yaml.
        digest: Returns the digest of the content at a path, or None if nothing is there.

    Returns:
        Sixteen hexadecimal digits. Paths do not count: the same code in another place is the same scorer.
    """
    modules = [(name, digest(str(path))) for name, path in sorted(source_files(module_of(source)).items())]
    content = [modules, [digest(path) for path in files]]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def source_files(module: str) -> dict[str, Path]:
    """Files of a module, its parent packages, and the user code that they import, directly or indirectly.

    Nothing is imported. A module is user code if it is outside the interpreter's folders, or has the same top-level
    package as `module`. Imports by a string at run time are not found.

    Args:
        module: Full name of the module.

    Returns:
        Module name to file; empty if the module does not exist.
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
    return same or not any(
        Path(spec.origin).resolve().is_relative_to(folder) for folder in _installed_folders()
    )


@cache
def _installed_folders() -> frozenset[Path]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return frozenset(Path(sysconfig.get_path(name)).resolve() for name in names)


def _spec(name: str) -> ModuleSpec | None:
    """Find a module's spec without importing its parent packages."""
    spec: ModuleSpec | None = None
    folders, full = sys.path, ""
    for part in name.split("."):
        full = f"{full}.{part}" if full else part
        if full in sys.builtin_module_names:
            return None
        spec, folders = _found(full, folders)
    return spec


def _found(name: str, folders: Sequence[str]) -> tuple[ModuleSpec | None, list[str]]:
    """Find a module in the folders of its package.

    PathFinder is not used: of a namespace package inside another package it reads the imported parent.

    Returns:
        Spec, or None for a namespace package or a missing module; and the folders of its own modules.
    """
    portions: list[str] = []
    for folder in folders:
        finder = pkgutil.get_importer(folder)
        spec = finder.find_spec(name) if finder is not None else None
        if spec is not None and spec.loader is not None:
            return spec, list(spec.submodule_search_locations or ())
        portions += [] if spec is None else spec.submodule_search_locations or []
    return None, portions


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:depth]) for depth in range(1, len(parts))]


def _imports(name: str, file: Path, *, is_package: bool) -> Iterator[str]:
    """Names of all modules that a file may import; for `from a import b`, also a.b."""
    try:
        tree = ast.parse(file.read_bytes())
    except SyntaxError:
        return  # importing the module reports the error
    package = name if is_package else name.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _base(package, node.level, node.module)
            yield from filter(None, [base])
            yield from (f"{base}.{alias.name}" if base else alias.name for alias in node.names)


def _base(package: str, level: int, module: str | None) -> str:
    """Module of a relative or absolute `from` import."""
    if level == 0:
        return module or ""
    parts = package.split(".")
    parts = parts[: len(parts) - level + 1]
    return ".".join([*parts, *([module] if module else [])])
