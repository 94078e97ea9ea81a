"""Scores of images in tables: batches, scores that are kept, and images that a scorer refuses."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chunk_grpo.artifacts import read_parts
from chunk_grpo.artifacts.kept import KEPT, Kept, Row, add_files
from chunk_grpo.code import add_code
from chunk_grpo.config.scorer_settings import ScorerSettings
from chunk_grpo.errors import DataError
from chunk_grpo.image_files import all_fitted, decode_image, read_picture
from chunk_grpo.parallel import Workers
from chunk_grpo.progress import Meter
from chunk_grpo.scorers.base import Pictures, ScoreBatch, Scorer, Scores, check_scores
from chunk_grpo.scorers.running.retry import score_with_retries
from chunk_grpo.scorers.running.spec import ScorerSpec

BATCH = 64
"""Minimum number of images per batch of a groupwise scorer."""

SHOWN = 50
"""Maximum number of refused images listed in the error message."""

GROUP = ("mode", "train_seed", "prompt_id")
"""Columns of images/1 that identify a group."""


class ImageRows(Protocol):
    """Images to score, in an order that is equal in every run."""

    groups: Counter[tuple[Any, ...]]
    """Number of images of each group."""

    def __len__(self) -> int: ...

    def records(self) -> Iterator[dict[str, Any]]:
        """Rows of images/1."""
        ...


class ImageTables:
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


def batch_of(
    records: Sequence[Mapping[str, Any]],
    prompts: Mapping[str, Mapping[str, str]],
    pictures: Mapping[str, Path] = MappingProxyType({}),
) -> ScoreBatch:
    """Images with the text and metadata of their prompts, and the pictures that these edit, by prompt id."""
    known = [prompts[record["prompt_id"]] for record in records]
    numbers: dict[tuple[Any, ...], int] = {}
    groups = [numbers.setdefault(tuple(r[name] for name in GROUP), len(numbers)) for r in records]
    images = np.stack([decode_image(r["image"]["bytes"], r["image"]["path"]) for r in records])
    return ScoreBatch(
        images=images,
        prompts=[p["prompt"] for p in known],
        metadata=[json.loads(p["metadata"]) for p in known],
        groups=groups,
        sources=edited_by([r["prompt_id"] for r in records], pictures, images.shape[1:3]),
    )


def edited_by(prompt_ids: Sequence[str], pictures: Mapping[str, Path], shape: tuple[int, ...]) -> Pictures | None:
    """Pictures that prompts edit [B, H, W, 3], at the height and width of the images; None: they edit none."""
    if not pictures:
        return None
    paths = [pictures[prompt_id] for prompt_id in prompt_ids]
    readers = {path: partial(read_picture, path) for path in paths}
    return all_fitted([readers[path] for path in paths], *shape)


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
    kept: Kept,
    workers: Workers,
    refusals: float = 0.0,
    pictures: Mapping[str, Path] = MappingProxyType({}),
) -> Iterator[Row]:
    """Yield one row per metric of each image, or one row with the reason if the scorer refused the image.

    The processes share the batches; only the main one gets the rows. `key` is the scorer's name in params.yaml,
    `prompts` rows of prompts/1 by id, `pictures` the pictures that they edit. At most the share `refusals` of the
    images may be refused; else DataError lists them.
    """

    def score(job: tuple[int, list[dict[str, Any]]]) -> tuple[int, list[Row]]:
        number, records = job
        batch = partial(batch_of, records, prompts, pictures)
        return len(records), kept.rows(number, partial(rows_of_batch, key, scorer, records, batch))

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
    key: str, scorer: Scorer, records: Sequence[Mapping[str, Any]], batch: Callable[[], ScoreBatch]
) -> list[Row]:
    """Score the batch of some images; return its rows."""
    scores = scored(key, scorer, batch())
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


def scored(key: str, scorer: Scorer, batch: ScoreBatch) -> Scores:
    """Scores of a batch, checked; a scorer that does not answer is asked again."""
    return check_scores(key, score_with_retries(key, scorer, batch), batch.prompts)


def too_many_refused(
    key: str, refused: Sequence[Row], count: int, refusals: float, prompts: Mapping[str, Mapping[str, str]]
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


def kept_scores(
    spec: ScorerSpec, settings: ScorerSettings, tables: Sequence[str], prompts: tuple[str, ...], out: str
) -> Kept:
    """Store for this computation: one per scorer, code, images, tables of prompts and batch size."""
    about = [spec.key, spec.spec_hash, spec.splits, settings.images_at_once]
    digest = hashlib.sha256(json.dumps(about).encode())
    add_code(digest)
    add_files(digest, (*tables, *prompts))
    return Kept(KEPT / digest.hexdigest()[:16], {"out": out})


def images_to_score(
    tables: Sequence[str], spec: ScorerSpec, prompts: Mapping[str, Mapping[str, str]], known: str
) -> ImageTables:
    """Find the images of the scorer's splits in tables of images/1 (Parquet), at least one.

    `prompts` are rows of prompts/1 by id; an unknown one is an error, which names their table `known`.
    """
    for table in tables:
        for part in read_parts(table, "images", ["prompt_id"]):
            for name in part["prompt_id"].unique().to_pylist():
                if name not in prompts:
                    raise DataError(f"{table}: prompt_id {name!r} is not in {known}; run `dvc repro`")
    splits = spec.splits
    chosen = ImageTables(tables, [name for name, row in prompts.items() if row["split"] in splits])
    if not len(chosen):
        raise DataError(
            f"{', '.join(tables)}: must hold images of prompts of the splits {', '.join(splits)} "
            f"(scorers.{spec.key}.splits), got none"
        )
    return chosen
