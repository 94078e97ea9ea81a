"""Pictures that prompts say how to edit: a folder with a table of the prompts and a file of each distinct picture."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from chunk_grpo.artifacts.io import read_table, table_from_rows, write_table
from chunk_grpo.artifacts.storage import Location, input_dir, output_dir
from chunk_grpo.image_files import encode_png

Key = TypeVar("Key", bound=Hashable)

INDEX = "index.parquet"
"""Name of the table pictures/1 in the folder."""


def write_pictures(pictures: Mapping[str, Key], read: Callable[[Key], NDArray[np.uint8]], location: Location) -> None:
    """Write the picture of each prompt id as a folder; equal ones share a file.

    `pictures` has what is read by prompt id, such as a path; `read` gives its picture [H, W, 3]. It is called once for
    equal ones, and one picture is in memory at a time.
    """
    names: dict[Key, str] = {}
    with output_dir(location) as folder:
        for picture in dict.fromkeys(pictures.values()):
            data = encode_png(read(picture))
            names[picture] = f"{hashlib.sha256(data).hexdigest()[:32]}.png"
            (folder / names[picture]).write_bytes(data)
        rows = [{"prompt_id": prompt_id, "picture": names[picture]} for prompt_id, picture in pictures.items()]
        write_table(table_from_rows(rows, "pictures"), folder / INDEX, "pictures")


@contextmanager
def open_pictures(location: Location) -> Iterator[Mapping[str, Path]]:
    """Paths of the pictures by prompt id; empty if the prompts edit none. A remote folder is copied for the context."""
    with input_dir(location) as folder:
        rows = read_table(folder / INDEX, "pictures").to_pylist()
        yield {row["prompt_id"]: folder / row["picture"] for row in rows}
