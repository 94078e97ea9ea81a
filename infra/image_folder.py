"""Images of any folder with their prompts, as the stage `score` reads those of a run."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from chunk_grpo.config.prompts import PromptChecks
from chunk_grpo.errors import DataError
from chunk_grpo.prompts import FieldNames, PromptRow, PromptSource, read_prompt_file
from stages.score import GROUP

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff")
COLUMNS = ("image", "file_name")
"""Columns of a prompt file that may name the image; the second is that of Hugging Face's image folders."""

INDEX = "metadata.jsonl"
"""Prompt file of a folder that has its own, as in Hugging Face's image folders."""

AS_THEY_ARE = PromptChecks(
    records="refuse", characters="keep", duplicates="keep", empty="refuse", spaces="keep", too_long="keep"
)
"""Checks of the prompts. The images exist, so nothing is dropped or changed."""

SHOWN = 5
"""Maximum of names in a message."""


@dataclass(frozen=True)
class ImageFile:
    """An image and its prompt.

    Attributes:
        name: Path within the folder.
        path: Path.
        prompt: Text of the prompt.
        metadata: Data for scorers, JSON.
        shape: Width and height in pixels.
    """

    name: str
    path: Path
    prompt: str
    metadata: str
    shape: tuple[int, int]


class ImageFolder:
    """Images of one size, in the form of the tables that the stage `score` reads. Files are read when needed."""

    def __init__(self, files: Sequence[ImageFile]) -> None:
        """Number the prompts: images with the same text and metadata are a group."""
        self.files = files
        numbers: dict[tuple[str, str], str] = {}
        ids = [numbers.setdefault((f.prompt, f.metadata), f"{len(numbers):06d}") for f in files]
        self.prompts: Mapping[str, Mapping[str, str]] = {
            name: {"prompt": prompt, "metadata": metadata} for (prompt, metadata), name in numbers.items()
        }
        """Rows of prompts by prompt id."""
        samples = Counter[str]()
        self._rows: list[dict[str, Any]] = []
        for name in ids:
            self._rows.append(
                {"policy": "", "mode": "", "train_seed": -1, "prompt_id": name, "sample": samples[name]}
            )
            samples[name] += 1
        self.groups: Counter[tuple[Any, ...]] = Counter(
            tuple(row[key] for key in GROUP) for row in self._rows
        )
        """Number of images of each group."""
        self._of = {(r["prompt_id"], r["sample"]): f for r, f in zip(self._rows, files, strict=True)}

    def __len__(self) -> int:
        return len(self.files)

    def records(self) -> Iterator[dict[str, Any]]:
        """Rows of images/1, in the order of the files."""
        for row, file in zip(self._rows, self.files, strict=True):
            yield {**row, "image": {"bytes": file.path.read_bytes(), "path": file.name}}

    def file_of(self, row: Mapping[str, Any]) -> ImageFile:
        """The image of a row of scores/2."""
        return self._of[row["prompt_id"], row["sample"]]


def read_image_folder(folder: Path, prompts: str | None, fields: FieldNames) -> list[ImageFile]:
    """Find the images of prompts, and check all of them without decoding one.

    Args:
        folder: Folder of the images.
        prompts: Prompt file; None: INDEX in the folder.
        fields: Names of the fields with prompt, category and metadata.

    Raises:
        DataError: The folder or a file is missing, an image is named twice or is none, or the images without a column
            that names them are more or fewer than the prompts.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: must be a folder with images, got none")
    location = str(folder / INDEX) if prompts is None else prompts
    if prompts is None and not Path(location).is_file():
        raise DataError(
            f"{location}: does not exist; name the file of the prompts by --prompts (PROMPTS=FILE)"
        )
    rows = read_prompt_file(PromptSource(location, fields=fields), AS_THEY_ARE).rows
    column = _column(rows, location)
    names = _in_order(folder, len(rows), location) if column is None else _named(rows, column, location)
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise DataError(
            f"{location}: must name images in {folder}, got {len(missing)} that do not exist: {_some(missing)}"
        )
    return [
        ImageFile(
            name,
            folder / name,
            row.text,
            json.dumps({key: value for key, value in row.metadata.items() if key != column}),
            _shape(folder / name),
        )
        for name, row in zip(names, rows, strict=True)
    ]


def _column(rows: Sequence[PromptRow], location: str) -> str | None:
    """Column that names the images; None: the prompts are in the order of the images."""
    found = [name for name in COLUMNS if any(name in row.metadata for row in rows)]
    if len(found) > 1:
        raise DataError(f"{location}: must have one of the columns {', '.join(COLUMNS)}, got both")
    return found[0] if found else None


def _named(rows: Sequence[PromptRow], column: str, location: str) -> list[str]:
    names = []
    for row in rows:
        name = row.metadata.get(column)
        if not isinstance(name, str) or not name:
            raise DataError(
                f"{location}, line {row.line}: {column!r} must be the path of an image in the folder, got {name!r}"
            )
        names.append(name)
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(f"{location}: must name each image once, got several lines for {_some(twice)}")
    return names


def _in_order(folder: Path, count: int, location: str) -> list[str]:
    """Names of the images, sorted with their numbers as numbers: image-2 is before image-10."""
    names = [path.name for path in folder.iterdir() if path.suffix.lower() in SUFFIXES]
    if len(names) != count:
        raise DataError(
            f"{folder}: must hold an image for each of the {count} prompts of {location}, got {len(names)} images; "
            f"images are taken in the order of their names, or name them in a column {COLUMNS[0]!r}"
        )
    return sorted(names, key=_with_numbers)


def _with_numbers(name: str) -> tuple[list[tuple[int, str]], str]:
    """Sort key of a name, its parts as numbers and texts."""
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts], name


def _shape(path: Path) -> tuple[int, int]:
    try:
        with Image.open(path) as image:
            width, height = image.size
            return width, height
    except (OSError, SyntaxError, ValueError) as error:  # Pillow raises these for other files
        raise DataError(f"{path}: not a readable picture ({error})") from error


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
