"""Modules that a module's source imports. Nothing is imported to find them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path


def imported_files(
    module: str, file_of: Callable[[str], Path | None], read: dict[Path, list[str]] | None = None
) -> dict[str, Path]:
    """Files of a module, its parent packages, and all that they import, directly or indirectly.

    Imports by a string at run time are not found.

    Args:
        module: Full name of the module.
        file_of: Returns the file of a module, or None if the module does not exist or does not count.
        read: Imports of files that earlier calls have read; gets those of this call.

    Returns:
        Module name to file; empty if the module does not exist.
    """
    found: dict[str, Path] = {}
    read = {} if read is None else read
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in found or (file := file_of(name)) is None:
            continue
        found[name] = file
        waiting += _parents(name)
        if file.suffix == ".py":
            if file not in read:
                read[file] = list(_imports(name, file))
            waiting += read[file]
    return found


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:depth]) for depth in range(1, len(parts))]


def _imports(name: str, file: Path) -> Iterator[str]:
    """Names of all modules that a file may import; for `from a import b`, also a.b."""
    try:
        tree = ast.parse(file.read_bytes())
    except SyntaxError:
        return  # importing the module reports the error
    package = name if file.stem == "__init__" else name.rpartition(".")[0]
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
