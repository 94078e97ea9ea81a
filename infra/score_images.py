"""Score a folder of images, without a pipeline.

chunk-grpo score FOLDER --prompts FILE --scorers NAME   (make score IMAGES=FOLDER PROMPTS=FILE SCORERS=NAME)

It writes scores.parquet and scores.csv with a row for each image, scorer and metric, and prints means. A run that was
stopped resumes after its last batch when the same command runs again.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field, ValidationError
from rich.console import Console
from rich.table import Table

from chunk_grpo.artifacts import check_writable, output_file, write_csv
from chunk_grpo.artifacts.kept import Kept
from chunk_grpo.config import read_raw_params
from chunk_grpo.config.load import parse_yaml, require_allowed, tuples
from chunk_grpo.config.problems import Problem, listed, schema_problems
from chunk_grpo.config.scorers import AnyExecutor, AnyScorer
from chunk_grpo.config.section import Name, Section
from chunk_grpo.errors import ConfigError, DataError
from chunk_grpo.library.scoring import kept_scores, score_rows
from chunk_grpo.parallel import Workers
from chunk_grpo.prompts.image_folders import INDEX, ImageFile, not_taken, read_image_folder, some_of
from chunk_grpo.scorers.base import Scorer
from chunk_grpo.scorers.running.placing import place_scorer
from chunk_grpo.scorers.running.spec import spec_of
from chunk_grpo.stopping import STOP
from infra.command_line import command_parser

ROOT = Path(__file__).resolve().parents[1]

_NEXT_STEP = "docs/parameters.md describes every key."

ALL_REFUSED = 1.0
"""Share of images that a scorer may refuse here: what it refuses is listed, with its reason."""

COLUMNS = pa.schema(
    [
        *((name, pa.string()) for name in ("image", "prompt", "scorer", "metric")),
        ("value", pa.float64()),  # null where the scorer refused the image
        ("refusal", pa.string()),  # its reason; null where there is a value
    ]
)


class ScorersFile(Section):
    """Sections of params.yaml that describe scorers."""

    scorers: Annotated[dict[Name, AnyScorer], Field(min_length=1)]
    """Scorer name to settings; `splits` are not used."""
    executors: dict[Name, AnyExecutor] = Field(default_factory=dict)
    """Scorer name to executor; default: in this process."""


def main(argv: Sequence[str] | None = None) -> int:
    """Score and print; return the exit code: 2 or 3 for invalid input, 75 to run again, as a stage does."""
    options = parser().parse_args(argv)
    with STOP.raised():
        _score(options)
    return 0


def read_scorers(name: str) -> ScorersFile:
    """Scorers of conf/scorers/NAME.yaml, or of a YAML file with the sections `scorers` and `executors`.

    The error lists all wrong settings.
    """
    file = Path(name)
    known = sorted(path.stem for path in (ROOT / "conf" / "scorers").glob("*.yaml"))
    if file.suffix not in (".yaml", ".yml"):
        if name not in known:
            raise ConfigError(
                f"--scorers: must be a YAML file or one of {', '.join(known)} (files of conf/scorers/), got {name!r}"
            )
        # Here: importing DVC takes half a second.
        from chunk_grpo.orchestration.presets import composed_text

        source = f"conf/scorers/{name}.yaml"
        return _checked(parse_yaml(composed_text(ROOT / "conf", f"scorers/{name}", {}, source), source), source)
    if file.resolve().parent == ROOT / "conf" / "scorers":
        return read_scorers(file.stem)
    return _checked(read_raw_params(file), name)


def _checked(raw: Mapping[str, Any], source: str) -> ScorersFile:
    """The two sections; others, such as those of a whole params.yaml, are not read."""
    values = tuples({key: raw[key] for key in ScorersFile.model_fields if key in raw})
    require_allowed(values, source)
    try:
        found = ScorersFile.model_validate(values)
    except ValidationError as error:
        raise ConfigError(listed(source, schema_problems(error, values, ScorersFile), _NEXT_STEP)) from None
    unknown = [name for name in found.executors if name not in found.scorers]
    if unknown:
        text = f"must be a name in scorers, got {unknown[0]!r}; there are: {', '.join(found.scorers)}"
        raise ConfigError(listed(source, [Problem(("executors", unknown[0]), text)], _NEXT_STEP))
    return found


def _score(options: argparse.Namespace) -> None:
    if not options.images:
        raise ConfigError("the folder of the images must have a name; name it (make score IMAGES=FOLDER)")
    folder = Path(options.images)
    sections = read_scorers(options.scorers)
    names = list(dict.fromkeys(options.only or sections.scorers))
    for name in names:
        if name not in sections.scorers:
            raise ConfigError(f"--only: must be names of {', '.join(sections.scorers)}, got {name!r}")
    files = read_image_folder(folder, options.prompts, options.prompt_field, options.picture_field)
    location = options.prompts or str(folder / INDEX)
    if ignored := not_taken(folder, files, location):
        why = "not scored, since no prompt names it or it is no image"
        sys.stderr.write(f"{folder}: {why}: {some_of(ignored)}\n")
    out = options.out or Path("scores", folder.resolve().name)
    check_writable(str(out / "scores.parquet"))
    done: list[Kept] = []
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        scorers = {
            key: stack.enter_context(closing(place_scorer(key, sections.scorers[key], sections.executors.get(key))))
            for key in names
        }
        for key, scorer in scorers.items():  # of all, before the first model is loaded
            scorer.check()
            _check_groups(key, scorer, files)
        for key, scorer in scorers.items():
            spec = spec_of(key, sections.scorers[key], scorer)
            for shape in dict.fromkeys(file.shape for file in files):  # a batch has images of one size
                part = _OfOneSize(file for file in files if file.shape == shape)
                tables = [str(each.path) for each in part.files.values()]
                about = (location, *map(str, part.pictures.values()))
                done.append(kept_scores(spec, scorer.settings, tables, about, str(out / "scores.parquet")))
                found = score_rows(key, scorer, part, part.prompts, done[-1], Workers(), ALL_REFUSED, part.pictures)
                rows += [_row(part.files[row["prompt_id"], row["sample"]], row) for row in found]
            scorer.close()  # before the next one is loaded
    places = {file.name: number for number, file in enumerate(files)}
    rows.sort(key=lambda row: (names.index(row["scorer"]), places[row["image"]]))
    table = pa.Table.from_pylist(rows, COLUMNS)
    with output_file(str(out / "scores.parquet")) as draft:
        pq.write_table(table, draft)
    write_csv(table, str(out / "scores.csv"))
    for kept in done:
        kept.forget()
    _show(rows, names, out)


class _OfOneSize:
    """Images of one size, in the form of the tables that the stage `score` reads. Files are read when needed."""

    def __init__(self, files: Iterable[ImageFile]) -> None:
        """Number the prompts: images with the same text, metadata and picture to edit are a group."""
        numbers: dict[tuple[str, str, Path | None], str] = {}
        samples = Counter[str]()
        self.files: dict[tuple[str, int], ImageFile] = {}
        """The images by prompt id and sample."""
        for file in files:
            name = numbers.setdefault((file.prompt, file.metadata, file.picture), f"{len(numbers):06d}")
            self.files[name, samples[name]] = file
            samples[name] += 1
        self.prompts = {name: {"prompt": text, "metadata": data} for (text, data, _), name in numbers.items()}
        """Rows of prompts by prompt id."""
        self.pictures = {name: path for (_, _, path), name in numbers.items() if path is not None}
        """Pictures of which images are edits, by prompt id."""
        self.groups = Counter[tuple[Any, ...]]({("base", -1, name): count for name, count in samples.items()})
        """Number of images of each group."""

    def __len__(self) -> int:
        return len(self.files)

    def records(self) -> Iterator[dict[str, Any]]:
        """Rows of images/1, in the order of the files."""
        for (name, sample), file in self.files.items():
            of = {"policy": "", "mode": "base", "train_seed": -1, "prompt_id": name, "sample": sample}
            yield {**of, "image": {"bytes": file.path.read_bytes(), "path": file.name}}


def _check_groups(key: str, scorer: Scorer, files: Sequence[ImageFile]) -> None:
    """Reject images of a prompt in several sizes for a scorer that compares them."""
    shapes: dict[tuple[str, str], ImageFile] = {}
    for file in files if scorer.groupwise else ():
        first = shapes.setdefault((file.prompt, file.metadata), file)
        if first.shape != file.shape:
            raise DataError(
                f"scorer {key}: compares the images of a prompt, which must have one size, got {first.shape} of "
                f"{first.name} and {file.shape} of {file.name}"
            )


def _row(file: ImageFile, row: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: row[name] for name in ("scorer", "metric", "value", "refusal")}
    return {"image": file.name, "prompt": file.prompt, **kept}


def mean_of(values: Sequence[float], prompts: Sequence[str]) -> tuple[float, float]:
    """Mean of the images' values, and its standard error with prompts as clusters: NaN with one prompt.

    error = sqrt(P / (P - 1) * sum over prompts of (sum over its images of (value - mean))^2) / N for N images of P
    prompts; with one image a prompt it is the deviation divided by sqrt(N).
    """
    array = np.asarray(values, dtype=np.float64)
    if not len(array):
        return math.nan, math.nan
    mean = float(array.mean())
    sums: dict[str, float] = {}
    for value, prompt in zip(array, prompts, strict=True):
        sums[prompt] = sums.get(prompt, 0.0) + float(value) - mean
    count = len(sums)
    squares = sum(each**2 for each in sums.values())
    return mean, math.sqrt(count / (count - 1) * squares) / len(array) if count > 1 else math.nan


def _show(rows: Sequence[Mapping[str, Any]], names: Sequence[str], out: Path) -> None:
    table = Table("scorer", "images", "mean", "standard error", "refused")
    for name in names:
        own = [row for row in rows if row["scorer"] == name and row["metric"] == "score"]
        judged = [row for row in own if row["value"] is not None]
        found = mean_of([row["value"] for row in judged], [row["prompt"] for row in judged])
        numbers = ("" if math.isnan(each) else f"{each:.6g}" for each in found)
        table.add_row(name, str(len(judged)), *numbers, str(len(own) - len(judged)))
    console = Console()
    console.print(table)
    console.print(f"{out / 'scores.parquet'}, {out / 'scores.csv'}", highlight=False, soft_wrap=True)


def parser() -> argparse.ArgumentParser:
    own = command_parser("score", __doc__)
    own.add_argument("images", help="folder of the images")
    own.add_argument(
        "--prompts",
        help="file of the prompts, in the order of the images, or with a column image or file_name (default: "
        "metadata.jsonl in the folder)",
    )
    own.add_argument(
        "--scorers", required=True, help="file of conf/scorers/ by its name, or a YAML file with `scorers`"
    )
    own.add_argument("--only", nargs="+", metavar="NAME", help="scorers of it to use (default: all)")
    own.add_argument("--prompt-field", help="column of the prompt (default: prompt or prompts)")
    own.add_argument(
        "--picture-field", help="column of the picture that an image is an edit of, below the file's folder"
    )
    own.add_argument("--out", type=Path, help="folder to write (default: scores/ and the folder's name)")
    return own
