"""Templates of questions: text with fields in braces, which are filled in for each image."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

METADATA = "metadata."
"""Beginning of the name of a field with a value of the prompt's metadata."""

_PIECE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]|[^{}]+")


@dataclass(frozen=True)
class Slot:
    """A field of a template: `prompt`, `metadata.KEY`, or another name that the template's user allows."""

    name: str


@dataclass(frozen=True)
class Template:
    """A text with fields."""

    pieces: tuple[str | Slot, ...]
    """Texts and fields, in order."""

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the fields, each once, in order."""
        return tuple(dict.fromkeys(piece.name for piece in self.pieces if isinstance(piece, Slot)))

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of the metadata among the fields."""
        return tuple(name.removeprefix(METADATA) for name in self.slots if name.startswith(METADATA))

    def fill(self, values: Mapping[str, str]) -> str:
        """Text with each field replaced by its value; braces in values stay as they are."""
        return "".join(values[piece.name] if isinstance(piece, Slot) else piece for piece in self.pieces)


def parse_template(text: str, names: Sequence[str] = ("prompt",)) -> Template:
    """Parse a text with fields: {prompt}, {metadata.KEY}, and others in `names`, which have no dot.

    {{ and }} are single braces. ValueError with the position if a field is unknown, or a brace is single.
    """
    return Template(tuple(_pieces(text, names)))


def _pieces(text: str, names: Sequence[str]) -> Iterator[str | Slot]:
    for found in _PIECE.finditer(text):
        piece, name = found.group(), found.group(1)
        if piece in ("{{", "}}"):
            yield piece[0]
        elif piece in ("{", "}"):
            raise ValueError(f"character {found.start() + 1}: a single {piece}; write {piece * 2} for a brace")
        elif name is None:
            yield piece
        elif name in names or (name.startswith(METADATA) and name != METADATA):
            yield Slot(name)
        else:
            known = ", ".join(f"{{{known}}}" for known in (*names, f"{METADATA}KEY"))
            raise ValueError(
                f"character {found.start() + 1}: {piece} is no field; the fields are {known}; write {{{{ and }}}} for "
                "braces"
            )
