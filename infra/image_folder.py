"""Images of any folder with their prompts, as the stage `score` reads those of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from chunk_grpo.library.scoring import GROUP
from chunk_grpo.prompts.image_folders import ImageFile


class ImageFolder:
    """Images of one size, in the form of the tables that the stage `score` reads. Files are read when needed."""

    def __init__(self, files: Sequence[ImageFile]) -> None:
        """Number the prompts: images with the same text, metadata and picture to edit are a group."""
        self.files = files
        numbers: dict[tuple[str, str, Path | None], str] = {}
        ids = [numbers.setdefault((f.prompt, f.metadata, f.picture), f"{len(numbers):06d}") for f in files]
        self.prompts: Mapping[str, Mapping[str, str]] = {
            name: {"prompt": prompt, "metadata": metadata} for (prompt, metadata, _), name in numbers.items()
        }
        """Rows of prompts by prompt id."""
        self.pictures = {name: path for (_, _, path), name in numbers.items() if path is not None}
        """Pictures of which images are edits, by prompt id."""
        samples = Counter[str]()
        self._rows: list[dict[str, Any]] = []
        for name in ids:
            self._rows.append(
                {"policy": "", "mode": "base", "train_seed": -1, "prompt_id": name, "sample": samples[name]}
            )
            samples[name] += 1
        self.groups: Counter[tuple[Any, ...]] = Counter(tuple(row[key] for key in GROUP) for row in self._rows)
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
