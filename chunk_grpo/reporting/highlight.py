"""A highlight of a run: Markdown with its pictures, for pages that cannot link to files."""

from __future__ import annotations

import base64
import io
import re
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

_COLOURS = 64
_PNG = re.compile(r"\]\(([^()\s/]+\.png)\)")


@dataclass(frozen=True)
class Highlight:
    """A part of a run's results."""

    key: str
    """Name, unique within a run: lower-case letters, digits and dashes."""
    title: str
    """Short title."""
    markdown: str
    """Text with a heading; its pictures are data: URIs."""


def data_uri(picture: bytes) -> str:
    """A PNG or JPEG as a data: URI."""
    kind = "png" if picture.startswith(b"\x89PNG") else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(picture).decode('ascii')}"


def report(folder: Path, page: str | None) -> list[Highlight]:
    """The report with its pictures, from the folder of report.md; empty if it does not exist.

    `page` is the URL of its HTML page, if any.
    """
    file = folder / "report.md"
    if not file.is_file():
        return []

    def embedded(found: re.Match[str]) -> str:
        picture = folder / found[1]
        return f"]({data_uri(picture.read_bytes())})" if picture.is_file() else found[0]

    link = f"[The report as a page]({page})\n\n" if page else ""
    return [Highlight("report", "The report", link + _PNG.sub(embedded, file.read_text(encoding="utf-8")))]


def plot_uri(plot: bytes) -> str:
    """A plot's PNG as a data: URI, in few colours and a quarter of its bytes: many versions of it are stored."""
    out = io.BytesIO()
    image = Image.open(io.BytesIO(plot)).convert("RGB")
    few = image.quantize(_COLOURS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    few.save(out, "PNG", optimize=True)
    return data_uri(out.getvalue())


def slug(text: str) -> str:
    """Convert text to the characters allowed in a key."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def escaped(text: str) -> str:
    """Escape text for Markdown, including table cells: no markup, no link and no picture comes of it."""
    text = re.sub(r"[ \t\r\n\f\v]+", " ", text).strip(" ")
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*\[\]|~#$]|(?<!\w)_|_(?!\w))", r"\\\1", text)
