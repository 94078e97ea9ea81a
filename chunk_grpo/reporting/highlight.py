"""One thing that is shown of a run: Markdown with its pictures, for a page that can hold no files beside it."""

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
    """Something to show of a run.

    Attributes:
        key: Names it within a run: lower-case letters, digits and dashes.
        title: What it is, in a few words.
        markdown: The text, with a heading; a picture stands in it as ![what it shows](NAME).
        images: The pictures by NAME, whose suffix is .png or .jpg.
    """

    key: str
    title: str
    markdown: str
    images: Mapping[str, bytes] = field(default_factory=dict)

    def inline(self) -> str:
        """The Markdown with its pictures inside, as data: URIs."""
        return _PICTURE.sub(lambda found: f"{found[1]}({self._uri(found[2])})", self.markdown)

    def _uri(self, name: str) -> str:
        if name not in self.images:  # an address of its own
            return name
        content = base64.b64encode(self.images[name]).decode("ascii")
        return f"data:{_MEDIA_TYPES[PurePath(name).suffix]};base64,{content}"


def report(folder: Path, page: str | None) -> list[Highlight]:
    """The report with its pictures; nothing when there is none.

    Args:
        folder: Of report.md.
        page: Address of the report as a page.
    """
    file = folder / "report.md"
    if not file.is_file():
        return []
    link = f"[The report as a page]({page})\n\n" if page else ""
    pictures = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.png")}
    return [Highlight("report", "The report", link + file.read_text(encoding="utf-8"), pictures)]


def smaller(plot: bytes) -> bytes:
    """The PNG of a plot in a few colours: a quarter of the bytes, for a text that is kept in many versions."""
    out = io.BytesIO()
    image = Image.open(io.BytesIO(plot)).convert("RGB")
    few = image.quantize(_COLOURS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    few.save(out, "PNG", optimize=True)
    return out.getvalue()


def slug(text: str) -> str:
    """Text as a key may hold it."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def escaped(text: str) -> str:
    """Text that shall stand in Markdown, also in a cell of a table, as it is."""
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|~#$])", r"\\\1", text)
