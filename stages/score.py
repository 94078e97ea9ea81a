"""Score one policy's images with one scorer."""

import hashlib
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chunk_grpo.artifacts import join, read_json, read_parts, read_table, table_from_rows, write_table
from chunk_grpo.artifacts.schemas import SCORER_KEY
from chunk_grpo.artifacts.table_checks import check_scale
from chunk_grpo.artifacts.unrecorded import KEPT, forget_recorded
from chunk_grpo.config import Params
from chunk_grpo.config.score_scales import scale
from chunk_grpo.config.scorer_settings import ScorerSettings
from chunk_grpo.config.scorers import InProcess
from chunk_grpo.errors import DataError
from chunk_grpo.image_files import decode_image
from chunk_grpo.machines import owns_disk, send_files
from chunk_grpo.parallel import Workers
from chunk_grpo.progress import Meter
from chunk_grpo.scorers.base import ScoreBatch, Scorer, check_scores
from chunk_grpo.scorers.running.placing import place_checked
from chunk_grpo.scorers.running.retry import score_with_retries
from chunk_grpo.scorers.running.spec import ScorerSpec, spec_from
from stages._kept import KeptScores, Row, add_files
from stages._launch.code import add_code
from stages._launch.processes import run_processes
from stages._stage import argument, inputs_of

BATCH = 64
"""Minimum number of images per batch of a groupwise scorer."""

SHOWN = 50
"""Maximum number of refused images listed in the error message."""

GROUP = ("mode", "train_seed", "prompt_id")
"""Columns of images/1 that identify a group."""


@dataclass(frozen=True)
class Arguments:
    spec: str = field(metadata=argument("JSON of stage check_scorers: spec of the scorer", reads=True))
    prompts: str = field(metadata=argument("prompts/1, Parquet", reads=True))
    images: str = field(
        metadata=argument(
            "images/1, Parquet, or a folder with seed-N/images.parquet of each training seed", reads=True
        )
    )
    out: str = field(metadata=argument("scores/2, Parquet", writes=True))


class ImageRows(Protocol):
    """Images to score, in an order that is equal in every run."""

    groups: Counter[tuple[Any, ...]]
    """Number of images of each group."""

    def __len__(self) -> int: ...

    def records(self) -> Iterator[dict[str, Any]]:
        """Rows of images/1."""
        ...


class Images:
    """Images of one policy for the prompts of some splits. They stay in their tables, which are read in parts."""

    def __init__(self, locations: Sequence[str], prompt_ids: Iterable[str]) -> None:
        """Read the columns that name the images of these prompts, from one table of images/1 (Parquet) or several."""
        self._locations, self._ids = locations, pa.array(prompt_ids, pa.string())
        self.groups: Counter[tuple[Any, ...]] = Counter()
        """Number of images of each group."""
        for part in self._parts(GROUP):
            self.groups.update(zip(*(part[name].to_pylist() for name in GROUP), strict=True))

    def __len__(self) -> int:
        return self.groups.total()

    def records(self) -> Iterator[dict[str, Any]]:
        """Rows of images/1, in the tables' order."""
        for part in self._parts(None):
            yield from part.to_pylist()

    def _parts(self, columns: Sequence[str] | None) -> Iterator[pa.Table]:
        for location in self._locations:
            for part in read_parts(location, "images", columns):
                yield part.filter(pc.is_in(part["prompt_id"], self._ids))


def whole_groups(
    records: Iterable[dict[str, Any]], groups: Counter[tuple[Any, ...]], size: int
) -> Iterator[list[dict[str, Any]]]:
    """Yield batches of about `size` rows, with all images of a group in one batch; one may have more, the last fewer.

    The rows of a group need not be adjacent in images/1: images are drawn in batches, tuned and hybrid in turn.
    `groups` has the number of rows of each group.
    """
    missing = Counter(groups)
    begun: defaultdict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    whole: list[dict[str, Any]] = []
    for record in records:
        group = tuple(record[name] for name in GROUP)
        begun[group].append(record)
        missing[group] -= 1
        if not missing[group]:
            whole += begun.pop(group)
        if len(whole) >= size:
            yield whole
            whole = []
    if whole:
        yield whole


def batch_of(records: Sequence[Mapping[str, Any]], prompts: Mapping[str, Mapping[str, str]]) -> ScoreBatch:
    """Images with the text and metadata of their prompts."""
    known = [prompts[record["prompt_id"]] for record in records]
    numbers: dict[tuple[Any, ...], int] = {}
    groups = [numbers.setdefault(tuple(r[name] for name in GROUP), len(numbers)) for r in records]
    return ScoreBatch(
        images=np.stack([decode_image(r["image"]["bytes"], r["image"]["path"]) for r in records]),
        prompts=[p["prompt"] for p in known],
        metadata=[json.loads(p["metadata"]) for p in known],
        groups=groups,
    )


def batches_of(scorer: Scorer, images: ImageRows) -> Iterator[list[dict[str, Any]]]:
    """Yield the scorer's batches of rows; equal in every run, so that a stopped run can resume."""
    size = scorer.settings.images_at_once
    if scorer.groupwise:
        yield from whole_groups(images.records(), images.groups, max(BATCH, size))
        return
    records = images.records()
    while batch := list(islice(records, size)):
        yield batch


def score_rows(
    key: str,
    scorer: Scorer,
    images: ImageRows,
    prompts: Mapping[str, Mapping[str, str]],
    kept: KeptScores,
    workers: Workers,
    refusals: float = 0.0,
) -> Iterator[Row]:
    """Yield one row per metric of each image, or one row with the reason if the scorer refused the image.

    The processes share the batches; only the main one gets the rows. `key` is the scorer's name in params.yaml,
    `prompts` rows of prompts/1 by id. At most the share `refusals` of the images may be refused; else DataError lists
    them.
    """

    def score(job: tuple[int, list[dict[str, Any]]]) -> tuple[int, list[Row]]:
        number, records = job
        return len(records), kept.rows(number, partial(rows_of_batch, key, scorer, records, prompts))

    refused: dict[int, list[Row]] = {}
    with Meter(f"scoring with {key}", len(images)) as meter:
        results = workers.in_order(enumerate(batches_of(scorer, images)), score)
        for number, (count, rows) in enumerate(results):
            if without := [row for row in rows if row["value"] is None]:
                refused[number] = without
            yield from rows
            meter.advance(count)
    found = [row for rows in refused.values() for row in rows]
    if found and len(found) / len(images) > refusals:
        kept.drop(refused)
        raise too_many_refused(key, found, len(images), refusals, prompts)


def rows_of_batch(
    key: str,
    scorer: Scorer,
    records: Sequence[Mapping[str, Any]],
    prompts: Mapping[str, Mapping[str, str]],
) -> list[Row]:
    """Score one batch; return its rows."""
    batch = batch_of(records, prompts)
    scores = check_scores(key, score_with_retries(key, scorer, batch), batch.prompts)
    rows: list[Row] = []
    for number, record in enumerate(records):
        of = {name: record[name] for name in ("policy", "mode", "train_seed", "prompt_id", "sample")}
        of["scorer"] = key
        if number in scores.refused:
            rows.append({**of, "metric": "score", "value": None, "refusal": scores.refused[number]})
            continue
        for metric, values in {"score": scores.values, **scores.details}.items():
            rows.append({**of, "metric": metric, "value": float(values[number]), "refusal": None})
    return rows


def too_many_refused(
    key: str,
    refused: Sequence[Row],
    count: int,
    refusals: float,
    prompts: Mapping[str, Mapping[str, str]],
) -> DataError:
    """The error that lists images without a score."""
    shown = [
        f"{row['mode']}, training seed {row['train_seed']}, prompt {row['prompt_id']} "
        f"({prompts[row['prompt_id']]['prompt']!r}), sample {row['sample']}: {row['refusal']}"
        for row in refused[:SHOWN]
    ]
    rest = [f"and {len(refused) - SHOWN} more"] if len(refused) > SHOWN else []
    return DataError(
        f"scorer {key}: {len(refused)} of {count} images have no score, more than the share {refusals:g} that "
        f"scorers.{key}.refusals allows. No score was made up. Batches without a refusal are kept. Run the same "
        "command again to score the other batches again, or raise `refusals` to leave these images out of all "
        "comparisons.\n" + "\n".join(f"  {line}" for line in [*shown, *rest])
    )


def tables_of(params: Params, arguments: Arguments) -> list[str]:
    """Tables of the images, in the order of the training seeds."""
    if arguments.images.endswith(".parquet"):
        return [arguments.images]
    return [join(arguments.images, f"seed-{seed}", "images.parquet") for seed in params.train.seeds]


def kept_scores(
    spec: ScorerSpec, settings: ScorerSettings, tables: Sequence[str], prompts: str
) -> KeptScores:
    """Store for this computation: one per scorer, code, images, prompts and batch size."""
    about = [spec.key, spec.hash, spec.splits, settings.images_at_once]
    digest = hashlib.sha256(json.dumps(about).encode())
    add_code(digest)
    add_files(digest, (*tables, prompts))
    return KeptScores(KEPT / digest.hexdigest()[:16])


def images_to_score(
    tables: Sequence[str], spec: ScorerSpec, prompts: Mapping[str, Mapping[str, str]], known: str
) -> Images:
    """Find the images of the scorer's splits in tables of images/1 (Parquet), at least one.

    `prompts` are rows of prompts/1 by id; an unknown one is an error, which names their table `known`.
    """
    for table in tables:
        for part in read_parts(table, "images", ["prompt_id"]):
            for name in part["prompt_id"].unique().to_pylist():
                if name not in prompts:
                    raise DataError(f"{table}: prompt_id {name!r} is not in {known}; run `dvc repro`")
    splits = spec.splits
    chosen = Images(tables, [name for name, row in prompts.items() if row["split"] in splits])
    if not len(chosen):
        raise DataError(
            f"{', '.join(tables)}: must hold images of prompts of the splits {', '.join(splits)} "
            f"(scorers.{spec.key}.splits), got none"
        )
    return chosen


def processes_of(params: Params, arguments: Arguments) -> int | None:
    """One process for a scorer that runs elsewhere or on a device of its own; None: one process for each GPU."""
    executor = params.executors.get(spec_from(read_json(arguments.spec), arguments.spec).key)
    is_here = executor is None or (isinstance(executor, InProcess) and executor.device is None)
    return None if is_here else 1


def main(params: Params, arguments: Arguments) -> None:
    """Write the scores table, with the scorer's spec in its metadata."""
    workers = Workers()
    if workers.is_main:
        forget_recorded()
    send_files(inputs_of(arguments))
    spec = spec_from(read_json(arguments.spec), arguments.spec)
    prompts = {r["prompt_id"]: r for r in read_table(arguments.prompts, "prompts").to_pylist()}
    tables = tables_of(params, arguments)
    images = images_to_score(tables, spec, prompts, arguments.prompts)
    scorer = place_checked(spec, params.scorers, params.executors)
    try:
        kept = kept_scores(spec, scorer.settings, tables, arguments.prompts)
        rows = score_rows(spec.key, scorer, images, prompts, kept, workers, spec.refusals)
        table = table_from_rows(rows, "scores")
        low, high = scale(scorer.settings)[1:]
        check_scale(table, arguments.out, low, high)
    finally:
        scorer.close()
    if workers.is_main:
        write_table(table, arguments.out, "scores", {SCORER_KEY.decode(): json.dumps(spec.to_json())})
    is_owner = owns_disk(KEPT)
    if workers.is_main:
        kept.end(arguments.out)
    elif is_owner:
        kept.forget()


if __name__ == "__main__":
    sys.exit(run_processes(main, Arguments, divisible=processes_of))
