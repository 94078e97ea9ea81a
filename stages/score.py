"""Score one policy's images with one scorer."""

import hashlib
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from chunk_grpo.artifacts import read_json, read_table, table_from_rows, write_table
from chunk_grpo.artifacts.schemas import SCORER_KEY
from chunk_grpo.config import Params
from chunk_grpo.config.scorers import ScorerSettings
from chunk_grpo.errors import DataError
from chunk_grpo.image_files import decode_image
from chunk_grpo.progress import Meter
from chunk_grpo.scorers.base import ScoreBatch, Scorer, check_scores
from chunk_grpo.scorers.placing import place_checked
from chunk_grpo.scorers.retry import score_with_retries
from chunk_grpo.scorers.spec import ScorerSpec, spec_from
from stages._kept import KEPT, KeptScores, Row, add_code, add_files
from stages._stage import argument, run_stage

BATCH = 64
"""Images that a scorer of groups gets at the least, so that it need not be asked about each group."""

SHOWN = 50
"""Refused images that a message has."""

GROUP = ("mode", "train_seed", "prompt_id")
"""What the images of a group share."""


@dataclass(frozen=True)
class Arguments:
    spec: str = field(metadata=argument("the scorer, JSON of the stage check_scorers"))
    prompts: str = field(metadata=argument("prompts/1, Parquet"))
    images: str = field(metadata=argument("images/1, Parquet"))
    out: str = field(metadata=argument("scores/2, Parquet", writes=True))


def whole_groups(images: pa.Table, size: int) -> Iterator[list[dict[str, Any]]]:
    """Rows, about `size` at a time, all images of a group together.

    In images/1 a group may lie in several places: images are drawn in batches, tuned and hybrid ones in turn.
    """
    missing = Counter(zip(*(images[name].to_pylist() for name in GROUP), strict=True))
    begun: defaultdict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    whole: list[dict[str, Any]] = []
    for part in images.to_batches(max_chunksize=size):
        for record in part.to_pylist():
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
    """The images with what the prompts table knows of them."""
    known = [prompts[record["prompt_id"]] for record in records]
    numbers: dict[tuple[Any, ...], int] = {}
    groups = [numbers.setdefault(tuple(r[name] for name in GROUP), len(numbers)) for r in records]
    return ScoreBatch(
        images=np.stack([decode_image(r["image"]["bytes"], r["image"]["path"]) for r in records]),
        prompts=[p["prompt"] for p in known],
        metadata=[json.loads(p["metadata"]) for p in known],
        groups=groups,
    )


def batches_of(scorer: Scorer, images: pa.Table) -> Iterator[list[dict[str, Any]]]:
    """Rows as they are handed to the scorer: the same batches in every run, so that a stopped one can go on."""
    size = scorer.settings.images_at_once
    if scorer.groupwise:
        yield from whole_groups(images, max(BATCH, size))
        return
    for first in range(0, images.num_rows, size):
        yield images.slice(first, size).to_pylist()


def score_rows(
    key: str,
    scorer: Scorer,
    images: pa.Table,
    prompts: Mapping[str, Mapping[str, str]],
    kept: KeptScores,
    refusals: float = 0.0,
) -> Iterator[Row]:
    """The scorer's value and details for every image, one row each; of a refused image one row with the reason.

    Args:
        key: The scorer's name in params.yaml.
        scorer: What scores.
        images: Schema images.
        prompts: Rows of schema prompts by their ids.
        kept: Where batches are kept as they come.
        refusals: Share of the images that may be refused.

    Raises:
        DataError: More images are refused; the message has them.
        TransientError: The scorer does not answer.
    """
    refused: dict[int, list[Row]] = {}
    with Meter(f"scoring with {key}", images.num_rows) as meter:
        for number, records in enumerate(batches_of(scorer, images)):
            rows = kept.rows(number, partial(rows_of_batch, key, scorer, records, prompts))
            if without := [row for row in rows if row["value"] is None]:
                refused[number] = without
            yield from rows
            meter.advance(len(records))
    found = [row for rows in refused.values() for row in rows]
    if found and len(found) / images.num_rows > refusals:
        kept.drop(refused)
        raise too_many_refused(key, found, images.num_rows, refusals, prompts)


def rows_of_batch(
    key: str,
    scorer: Scorer,
    records: Sequence[Mapping[str, Any]],
    prompts: Mapping[str, Mapping[str, str]],
) -> list[Row]:
    """The rows of one batch."""
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
    """What to say of images without a score."""
    shown = [
        f"{row['mode']}, training seed {row['train_seed']}, prompt {row['prompt_id']} "
        f"({prompts[row['prompt_id']]['prompt']!r}), sample {row['sample']}: {row['refusal']}"
        for row in refused[:SHOWN]
    ]
    rest = [f"and {len(refused) - SHOWN} more"] if len(refused) > SHOWN else []
    return DataError(
        f"scorer {key}: {len(refused)} of {count} images have no score, more than the share {refusals:g} that "
        f"scorers.{key}.refusals allows. No score was made up. Every image was asked about, and batches without a "
        "refusal are kept: run the same command again to have the others scored again, or raise `refusals` to leave "
        "these images out of all comparisons.\n" + "\n".join(f"  {line}" for line in [*shown, *rest])
    )


def kept_scores(spec: ScorerSpec, settings: ScorerSettings, arguments: Arguments) -> KeptScores:
    """Where batches of this computation are kept: of one scorer and code, images, prompts and size of a batch."""
    about = [spec.key, spec.hash, spec.splits, settings.images_at_once]
    digest = hashlib.sha256(json.dumps(about).encode())
    add_code(digest)
    add_files(digest, (arguments.images, arguments.prompts))
    return KeptScores(KEPT / digest.hexdigest()[:16])


def images_to_score(
    arguments: Arguments, spec: ScorerSpec, prompts: Mapping[str, Mapping[str, str]]
) -> pa.Table:
    """The images of the scorer's splits.

    Raises:
        DataError: A prompt is unknown, or there is no image of these splits.
    """
    images = read_table(arguments.images, "images")
    for name in images["prompt_id"].unique().to_pylist():
        if name not in prompts:
            raise DataError(
                f"{arguments.images}: prompt_id {name!r} is not in {arguments.prompts}; run `dvc repro`"
            )
    splits = spec.splits
    chosen = images.filter(pa.array([prompts[n]["split"] in splits for n in images["prompt_id"].to_pylist()]))
    if not chosen.num_rows:
        raise DataError(
            f"{arguments.images}: must hold images of prompts of the splits {', '.join(splits)} "
            f"(scorers.{spec.key}.splits), got none"
        )
    return chosen


def main(params: Params, arguments: Arguments) -> None:
    """Write the scores table, which carries the scorer's spec."""
    spec = spec_from(read_json(arguments.spec), arguments.spec)
    prompts = {r["prompt_id"]: r for r in read_table(arguments.prompts, "prompts").to_pylist()}
    images = images_to_score(arguments, spec, prompts)
    scorer = place_checked(spec, params.scorers, params.executors)
    try:
        kept = kept_scores(spec, scorer.settings, arguments)
        rows = score_rows(spec.key, scorer, images, prompts, kept, spec.refusals)
        table = table_from_rows(rows, "scores")
    finally:
        scorer.close()
    write_table(table, arguments.out, "scores", {SCORER_KEY.decode(): json.dumps(spec.to_json())})
    kept.forget()


if __name__ == "__main__":
    sys.exit(run_stage(main, Arguments))
