"""Source files of an external scorer: its module and the user code that it imports."""

from __future__ import annotations

import hashlib
import json
import pkgutil
import sys
import sysconfig
from collections.abc import Callable, Sequence
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.metadata import entry_points
from pathlib import Path

from chunk_grpo.imports import imported_files

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
    """Digest of all code and files of an external scorer, sixteen hexadecimal digits.

    Paths do not count: the same code in another place is the same scorer.

    Args:
        source: `source` of the scorer in params.yaml.
        files: Files and folders that the scorer reads, as in params.yaml.
        digest: Digest of the content at a path; None if nothing is there.
    """
    module = module_of(source)
    modules = [(name, digest(str(path))) for name, path in sorted(source_files(module).items())]
    if not modules:  # importing it reports the error, unless DVC tracks the file
        digest(f"{module.replace('.', '/')}.py")
    content = [modules, [digest(path) for path in files]]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def source_files(module: str) -> dict[str, Path]:
    """Module name to file: a module, its parent packages, and the user code that they import, directly or indirectly.

    Nothing is imported. A module is user code if it is outside the interpreter's folders, or has the same top-level
    package as `module`. Imports by a string at run time are not found. Empty if the module does not exist.
    """

    def file_of(name: str) -> Path | None:
        spec = None if name.partition(".")[0] in _OURS else _spec(name)
        return Path(spec.origin) if spec is not None and spec.origin and _counts(spec, module) else None

    return imported_files(module, file_of)


def _counts(spec: ModuleSpec, module: str) -> bool:
    assert spec.origin is not None
    if spec.origin in ("built-in", "frozen"):
        return False
    same = spec.name.partition(".")[0] == module.partition(".")[0]
    return same or not any(Path(spec.origin).resolve().is_relative_to(folder) for folder in _installed_folders())


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
