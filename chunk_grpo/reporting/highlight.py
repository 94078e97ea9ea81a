"""A highlight of a run: Markdown with its pictures, for pages that cannot link to files."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from PIL import Image

_COLOURS = 64
_MEDIA_TYPES = {".png": "image/png", ".jpg": "image/jpeg"}
_PICTURE = re.compile(r"(!\[(?:[^\]\\]|\\.)*\])\(([^)\s]+)\)")


@dataclass(frozen=True)
class Highlight:
    """A part of a run's results.

    Attributes:
        key: Name, unique within a run: lower-case letters, digits and dashes.
        title: Short title.
        markdown: Text with a heading; refers to pictures as ![alternative text](NAME).
        images: NAME to picture; its suffix is .png or .jpg.
    """

    key: str
    title: str
    markdown: str
    images: Mapping[str, bytes] = field(default_factory=dict)

    def inline(self) -> str:
        """The Markdown with its pictures embedded as data: URIs."""
        return _PICTURE.sub(lambda found: f"{found[1]}({self._uri(found[2])})", self.markdown)

    def _uri(self, name: str) -> str:
        if name not in self.images:  # an external address
            return name
        content = base64.b64encode(self.images[name]).decode("ascii")
        return f"data:{_MEDIA_TYPES[PurePath(name).suffix]};base64,{content}"


def report(folder: Path, page: str | None) -> list[Highlight]:
    """The report with its pictures; empty if it does not exist.

    Args:
        folder: Folder of report.md.
        page: URL of the report's HTML page, if any.
    """
    file = folder / "report.md"
    if not file.is_file():
        return []
    link = f"[The report as a page]({page})\n\n" if page else ""
    pictures = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.png")}
    return [Highlight("report", "The report", link + file.read_text(encoding="utf-8"), pictures)]


def smaller(plot: bytes) -> bytes:
    """Reduce the colours of a plot's PNG to a quarter of its bytes: many versions of a highlight are stored."""
    out = io.BytesIO()
    image = Image.open(io.BytesIO(plot)).convert("RGB")
    few = image.quantize(_COLOURS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    few.save(out, "PNG", optimize=True)
    return out.getvalue()


def slug(text: str) -> str:
    """Convert text to the characters allowed in a key."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def escaped(text: str) -> str:
    """Escape text for Markdown, including table cells."""
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|~#$])", r"\\\1", text)
