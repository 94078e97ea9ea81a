"""Folders of images with a file of their prompts, as in the image folders of Hugging Face's data sets."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from chunk_grpo.config.prompts import PromptChecks, PromptFile
from chunk_grpo.errors import DataError
from chunk_grpo.image_files import check_picture
from chunk_grpo.prompts.read import read_prompt_file
from chunk_grpo.prompts.rows import PromptRow

INDEX = "metadata.jsonl"
"""Prompt file of a folder that has its own."""

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff")
COLUMNS = ("image", "file_name")
"""Columns of a prompt file that may name the image; the second is that of Hugging Face's image folders."""

AS_THEY_ARE = PromptChecks(
    records="refuse", characters="keep", duplicates="keep", empty="refuse", spaces="keep", too_long="keep"
)
"""Checks of the prompts. The images exist, so nothing is dropped or changed."""

SHOWN, SHOWN_CHARACTERS = 5, 80
"""Maximum of names in a message, and of characters of a name."""


@dataclass(frozen=True)
class ImageFile:
    """An image and its prompt."""

    name: str
    """Path within the folder."""
    path: Path
    """Path."""
    prompt: str
    """Text of the prompt."""
    metadata: str
    """Data for scorers, JSON."""
    shape: tuple[int, int]
    """Width and height in pixels."""
    picture: Path | None = None
    """Picture of which it is an edit; None: it is none."""


def read_image_folder(
    folder: Path, prompts: str | None = None, prompt_field: str | None = None, picture_field: str | None = None
) -> list[ImageFile]:
    """Find the images of prompts, and check all of them without decoding one.

    `prompts` names the prompt file; without it INDEX in the folder is read. `prompt_field` and `picture_field` name its
    columns, as in `PromptFile`. DataError if a file is named twice or is no image, or if no column names the images and
    they are more or fewer than the prompts.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: must be a folder with images, got none")
    location = prompts or str(folder / INDEX)
    if not prompts and not Path(location).is_file():
        raise DataError(f"{location}: does not exist; name the file of the prompts by --prompts (PROMPTS=FILE)")
    file = PromptFile(path=location, prompt_field=prompt_field or None, picture_field=picture_field or None)
    rows = read_prompt_file(file, AS_THEY_ARE).rows
    column = _column(rows, location)
    names = _in_order(folder, len(rows), location) if column is None else _named(rows, column, location)
    try:
        paths = [path_inside(folder, name) for name in names]
    except ValueError as error:
        raise DataError(f"{location}: {error}") from error
    edited = [_edited(row, location) if picture_field else None for row in rows]
    missing = [name for name, path in zip(names, paths, strict=True) if not path.is_file()]
    if missing:
        raise DataError(
            f"{location}: must name images in {folder}, got {len(missing)} that do not exist: {some_of(missing)}"
        )
    return [
        ImageFile(
            name,
            path,
            row.text,
            json.dumps({key: value for key, value in row.metadata.items() if key != column}),
            check_picture(path),
            picture,
        )
        for name, path, row, picture in zip(names, paths, rows, edited, strict=True)
    ]


def _edited(row: PromptRow, location: str) -> Path:
    """The picture that a row names beside its file."""
    try:
        path = picture_inside(Path(location).parent, str(row.picture))
    except ValueError as error:
        raise DataError(f"{location}, line {row.line}: {error}") from error
    check_picture(path)
    return path


def picture_inside(folder: Path, name: str) -> Path:
    """The path of a picture to edit; ValueError if it is no file in the folder, as `path_inside`."""
    path = path_inside(folder, name)
    if not path.is_file():
        raise ValueError(f"names the picture {name!r}, which is no file in {folder}")
    return path


def path_inside(folder: Path, name: str) -> Path:
    """The path of an image; ValueError if its name is not relative, has `..`, or a link leads out of the folder."""
    path = folder / name
    try:
        inside = path.resolve().is_relative_to(folder.resolve())
        path.is_file()  # refuses a long name
    except (OSError, RuntimeError, ValueError) as error:  # a link to itself, a character that no name has
        raise ValueError(
            f"must name images, got {name[:SHOWN_CHARACTERS]!r} ({type(error).__name__}); correct the name, or remove "
            "the link"
        ) from error
    if not inside or Path(name).is_absolute() or ".." in Path(name).parts:
        raise ValueError(f"must name images inside {folder}, got {name!r}; copy the image into the folder")
    return path


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
        raise DataError(f"{location}: must name each image once, got several lines for {some_of(twice)}")
    return names


def _in_order(folder: Path, count: int, location: str) -> list[str]:
    """Names of the images, sorted with their numbers as numbers: image-2 is before image-10."""
    entries = sorted(path.name for path in folder.iterdir())
    names = [name for name in entries if Path(name).suffix.lower() in SUFFIXES]
    ordered = sorted(names, key=_with_numbers)
    if len(names) != count:
        ignored = [name for name in entries if name not in names]
        more = f"; not taken: {some_of(ignored)}" if ignored else ""
        raise DataError(
            f"{folder}: must hold an image for each of the {count} prompts of {location}, got {len(names)} images"
            f"{_odd(ordered)}{more}; images are taken in the order of their names, or name them in a column "
            f"{COLUMNS[0]!r}"
        )
    return ordered


def _odd(names: Sequence[str]) -> str:
    """The names of another form than most, digits aside; what is probably surplus."""
    forms = Counter(re.sub(r"\d+", "0", name) for name in names)
    usual = max(forms, key=forms.__getitem__, default="")
    odd = [name for name in names if re.sub(r"\d+", "0", name) != usual]
    return f", of which these have names of another form: {some_of(odd)}" if 0 < len(odd) < forms[usual] else ""


def not_taken(folder: Path, files: Sequence[ImageFile], prompts: str) -> list[str]:
    """Names in a folder, but for that of the prompt file, that are no image of `files` and hold none."""
    taken = {INDEX, Path(prompts).name, *(Path(file.name).parts[0] for file in files)}
    return sorted(path.name for path in folder.iterdir() if path.name not in taken)


def _with_numbers(name: str) -> tuple[list[tuple[int, str]], str]:
    """Sort key of a name, its parts as numbers and texts."""
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts], name


def some_of(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
