"""Writes images in the folder layout of GenEval's original evaluator, and reads its results.

    ROOT/00000/metadata.jsonl       the prompt's record, one JSON object
    ROOT/00000/samples/0000.png     the prompt's images

`python evaluation/evaluate_images.py ROOT --outfile results.jsonl` of github.com/djghosh13/geneval (commit af4902f)
then writes one line per image. It needs mmdet 2 and a GPU. Use it to compare both evaluators on a few hundred images.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, Json, ValidationError

from chunk_grpo.errors import DataError
from chunk_grpo.scorers.geneval.records import TAGS


class OriginalResult(BaseModel, frozen=True, strict=True):
    """Result of the original evaluator for one image, a line of its file."""

    filename: Annotated[str, Field(pattern=r"(^|/)\d+/samples/\d+\.png$")]
    """Path of the image, which ends like 00000/samples/0000.png."""
    tag: Literal[TAGS]  # type: ignore[valid-type]
    """Task of the prompt, from TAGS."""
    prompt: str
    """Text of the prompt."""
    correct: bool
    """Whether the image meets every clause of the record."""
    reason: str
    """Reasons for a wrong image, one per line; empty for a correct image."""
    metadata: Json[dict[str, Any]]
    """GenEval record of the prompt."""

    @property
    def prompt_number(self) -> int:
        """Number of the prompt's folder, from 0."""
        return int(Path(self.filename).parts[-3])

    @property
    def sample(self) -> int:
        """Number of the image within its prompt, from 0."""
        return int(Path(self.filename).stem)


def write_prompt_folder(root: Path, number: int, record: Mapping[str, object], pictures: Sequence[bytes]) -> None:
    """Write the record and the PNG files of one prompt, in the order of their samples, into a folder below `root`.

    DataError if the record lacks `tag` or `prompt`, or if the prompt's folder exists already: images of another run
    would be mixed with these.
    """
    if missing := {"tag", "prompt"} - set(record):
        raise DataError(
            f"record of prompt {number}: must be one of GenEval's, with {', '.join(sorted(missing))}; choose the split "
            "of GenEval's prompts by --split"
        )
    folder = root / f"{number:05}"
    if folder.exists():
        raise DataError(f"{folder}: exists already; write into an empty folder, or remove it")
    samples = folder / "samples"
    samples.mkdir(parents=True)
    (folder / "metadata.jsonl").write_text(json.dumps(dict(record)) + "\n", encoding="utf-8")
    for sample, picture in enumerate(pictures):
        (samples / f"{sample:04}.png").write_bytes(picture)


def read_results(path: Path) -> list[OriginalResult]:
    """Read the original evaluator's results, sorted by prompt and sample: the evaluator visits folders in any order.

    DataError if the file is missing, a line is no result (the message names the line), or an image has two lines.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as results of GenEval's evaluator: {error}") from error
    results: dict[tuple[int, int], OriginalResult] = {}
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                result = OriginalResult.model_validate_json(line)
            except ValidationError as error:
                faults = "; ".join(
                    f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}, got {fault['input']!r}"
                    for fault in error.errors()
                )
                raise DataError(f"{path}:{number}: no result of GenEval's evaluator: {faults}") from error
            picture = result.prompt_number, result.sample
            if picture in results:
                raise DataError(f"{path}:{number}: a second result for sample {picture[1]} of prompt {picture[0]}")
            results[picture] = result
    return [results[picture] for picture in sorted(results)]
