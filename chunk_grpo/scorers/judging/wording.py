"""Wording of the questions, read from a file: a template, or an evaluator's source."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from chunk_grpo.config.templates import Slot, Template, parse_template
from chunk_grpo.errors import DataError


def read_template(key: str, path: str) -> Template:
    """Read a template from a text file, whose final line end is no part of it, or from an evaluator's Python source.

    The source (.py) is not run. DataError if the file cannot be read, or has no template.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
        if Path(path).suffix == ".py":
            return question_of(text)
        return parse_template(text.removesuffix("\n"))
    except (OSError, ValueError) as error:
        raise DataError(
            f"{key}: {path}: {error}. Give a text file with a template, or a Python source that assigns a string with "
            "{prompt} to `question`."
        ) from error


def question_of(source: str) -> Template:
    """Template of the string that an evaluator's source assigns to `question`; {prompt} in it is the prompt.

    ValueError if there is no such string, or there are several that differ.
    """
    found = {
        literal_pieces(node.value, lambda value: getattr(value, "id", None), ("prompt",))
        for node in ast.walk(parsed_python(source))
        if isinstance(node, ast.Assign)
        and any(isinstance(target, ast.Name) and target.id == "question" for target in node.targets)
        and isinstance(node.value, (ast.JoinedStr, ast.Constant))
    }
    if len(found) != 1:
        raise ValueError(f"needs one string that is assigned to `question`, has {len(found)}")
    return Template(found.pop())


def digest(template: Template, system: str | None = None) -> str:
    """SHA-256 of a template, and of a system message if there is one."""
    pieces: list[object] = [[piece.name] if isinstance(piece, Slot) else piece for piece in template.pieces]
    return hashlib.sha256(json.dumps(pieces if system is None else [system, pieces]).encode()).hexdigest()


def parsed_python(source: str) -> ast.Module:
    """Syntax tree of an evaluator's source. ValueError: it is no Python."""
    try:
        return ast.parse(source)
    except SyntaxError as error:
        raise ValueError(f"is no Python ({error})") from error


def literal_pieces(
    text: ast.expr, name_of: Callable[[ast.expr], object], names: tuple[str, ...]
) -> tuple[str | Slot, ...]:
    """Pieces of a constant, or of an f-string whose values `name_of` names; ValueError for anything else."""
    pieces: list[str | Slot] = []
    for part in text.values if isinstance(text, ast.JoinedStr) else [text]:
        match part:
            case ast.Constant(value=str(words)):
                pieces.append(words)
            case ast.FormattedValue(value=value, conversion=-1, format_spec=None) if name_of(value) in names:
                pieces.append(Slot(str(name_of(value))))
            case _:
                raise ValueError(f"line {part.lineno}: only text and {' and '.join(names)} can be read")
    return tuple(pieces)
