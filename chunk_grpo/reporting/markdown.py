"""A section of the report as Markdown with its pictures, for pages that cannot link to files, and texts in Markdown."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

_COLOURS = 64
_QUALITY = 84
_PNG = re.compile(r"\]\(([^()\s/]+\.png)\)")
LARGEST = 1_000_000
"""Largest size of a picture in bytes; base64 adds a third."""


@dataclass(frozen=True)
class Section:
    """A part of a run's results."""

    key: str
    """Name, unique within a run: lower-case letters, digits and dashes."""
    title: str
    markdown: str
    """Text with a heading; its pictures are data: URIs."""


def report(folder: Path, page: str | None) -> list[Section]:
    """The report with its pictures, from the folder of report.md; empty if it does not exist.

    `page` is the URL of its HTML page, if any.
    """
    file = folder / "report.md"
    if not file.is_file():
        return []
    pictures = {path.name: reduced(path.read_bytes()) for path in folder.glob("*.png")}
    link = f"[The report as a page]({page})\n\n" if page else ""
    return [Section("report", "The report", link + embedded(file.read_text(encoding="utf-8"), pictures))]


def embedded(markdown: str, pictures: Mapping[str, bytes]) -> str:
    """The text with the named pictures in it; other addresses stay."""

    def address(found: re.Match[str]) -> str:
        return f"]({data_uri(pictures[found[1]])})" if found[1] in pictures else found[0]

    return _PNG.sub(address, markdown)


def data_uri(picture: bytes) -> str:
    """A PNG or JPEG as a data: URI."""
    kind = "png" if picture.startswith(b"\x89PNG") else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(picture).decode('ascii')}"


def few_colours(plot: bytes) -> bytes:
    """A plot's PNG in few colours and a quarter of its bytes: many versions of it are stored."""
    out = io.BytesIO()
    image = Image.open(io.BytesIO(plot)).convert("RGB")
    few = image.quantize(_COLOURS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    few.save(out, "PNG", optimize=True)
    return out.getvalue()


def reduced(picture: bytes) -> bytes:
    """A PNG as it is if it has at most `LARGEST` bytes; else as a JPEG, smaller and smaller until it has."""
    while len(picture) > LARGEST:
        out = io.BytesIO()
        image = Image.open(io.BytesIO(picture)).convert("RGB")
        if picture.startswith(b"\xff\xd8"):
            image = image.reduce(2)
        image.save(out, "JPEG", quality=_QUALITY)
        picture = out.getvalue()
    return picture


def slug(text: str) -> str:
    """Convert text to the characters allowed in a key."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def escaped(text: str) -> str:
    """Escape text for Markdown, including table cells: no markup, no link and no picture comes of it."""
    text = re.sub(r"[ \t\r\n\f\v]+", " ", text).strip(" ")
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*\[\]|~#$]|(?<!\w)_|_(?!\w))", r"\\\1", text)
