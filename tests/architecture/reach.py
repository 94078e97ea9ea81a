"""Which functions and classes a program can come to: found by following names from one definition to the next.

It reads source text alone. A name in a function's body that is a function, class or constant of a known module is
followed; so are attributes of imported modules. A class is reached as a whole, with all its methods.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

Definition: TypeAlias = tuple[str, str]
"""Module, and the name of a function, class or constant of it."""


def sources(root: Path, *packages: str) -> dict[str, str]:
    """The text of each module of these packages by its dotted name."""
    found = {}
    for package in packages:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text("utf-8")
    return found


class Reach:
    """Definitions that the modules of a text reach."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        """Parse the source text of each dotted module name."""
        self._modules = {name: _Module(name, text, texts) for name, text in texts.items()}
        self._followed: dict[Definition, list[Definition]] = {}

    def of(self, start: str) -> set[str]:
        """Dotted names of the functions, classes and constants that module `start` comes to when it runs."""
        todo = [(start, name) for name in self._modules[start].defined] + self._followed_from(start, "")
        seen: set[Definition] = set()
        while todo:
            definition = todo.pop()
            if definition not in seen:
                seen.add(definition)
                module, name = definition
                todo += self._followed_from(module, name) + self._followed_from(module, "")
        return {f"{module}.{name}" for module, name in seen}

    def public(self, module: str) -> set[str]:
        """Dotted names of a module's own functions and classes that do not begin with an underscore."""
        kinds = (ast.FunctionDef, ast.ClassDef)
        defined = self._modules[module].defined
        return {f"{module}.{n}" for n, node in defined.items() if isinstance(node, kinds) and n[0] != "_"}

    def _followed_from(self, module: str, name: str) -> list[Definition]:
        """Names in a definition; without a name, names in the statements that run at the module's import."""
        if (module, name) not in self._followed:
            there = self._modules[module]
            nodes = [there.defined[name]] if name else there.loose
            found = {each for node in nodes for each in there.named_in(node, self._modules)}
            self._followed[module, name] = sorted(found)
        return self._followed[module, name]


class _Module:
    """A module's definitions and imports, wherever in it they stand."""

    def __init__(self, name: str, text: str, known: Collection[str]) -> None:
        self.name, self.defined, self.loose = name, dict[str, ast.AST](), list[ast.AST]()
        self._imported: dict[str, tuple[str, str | None]] = {}
        tree = ast.parse(text)
        for node in tree.body:
            match node:
                case ast.FunctionDef() | ast.ClassDef():
                    self.defined[node.name] = node
                case ast.Assign(targets=[ast.Name(id=target)]) | ast.AnnAssign(target=ast.Name(id=target)):
                    self.defined[target] = node
                case _:
                    self.loose.append(node)
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                self._imported |= {each.asname or each.name: (each.name, None) for each in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for each in node.names:
                    inner = f"{node.module}.{each.name}"
                    found = (inner, None) if inner in known else (node.module, each.name)
                    self._imported[each.asname or each.name] = found

    def named_in(self, node: ast.AST, modules: Mapping[str, _Module]) -> Iterator[Definition]:
        """The definitions that a piece of code names."""
        for part in ast.walk(node):
            if isinstance(part, ast.Name):
                yield from self._meant(part.id, modules)
            elif isinstance(part, ast.Attribute):
                module, attribute = self._imported.get(ast.unparse(part.value), ("", None))
                if module in modules and attribute is None:
                    yield from modules[module]._meant(part.attr, modules)

    def _meant(self, name: str, modules: Mapping[str, _Module]) -> Iterator[Definition]:
        """The definition that a name of this module stands for, through imports."""
        if name in self.defined:
            yield self.name, name
            return
        module, attribute = self._imported.get(name, ("", None))
        if module in modules and attribute is not None:
            yield from modules[module]._meant(attribute, modules)
