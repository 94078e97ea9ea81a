"""Score one policy's images with one scorer."""

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from chunk_grpo.artifacts import read_json, read_table, table_from_rows, write_table
from chunk_grpo.artifacts.schemas import SCORER_KEY
from chunk_grpo.config import Params
from chunk_grpo.errors import DataError
from chunk_grpo.image_files import decode_image
from chunk_grpo.progress import Meter
from chunk_grpo.scorers.base import ScoreBatch, Scorer, check_scores
from chunk_grpo.scorers.placing import place_checked
from chunk_grpo.scorers.spec import ScorerSpec, spec_from
from stages._stage import argument, run_stage

BATCH = 64
"""About how many images are decoded at a time, if the scorer takes no more at once."""

GROUP = ("mode", "train_seed", "prompt_id")
"""What the images of a group share."""


@dataclass(frozen=True)
class Arguments:
    spec: str = field(metadata=argument("the scorer, JSON of the stage check_scorers"))
    prompts: str = field(metadata=argument("prompts/1, Parquet"))
    images: str = field(metadata=argument("images/1, Parquet"))
    out: str = field(metadata=argument("scores/1, Parquet", writes=True))


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


def score_rows(
    key: str, scorer: Scorer, images: pa.Table, prompts: Mapping[str, Mapping[str, str]]
) -> Iterator[dict[str, str | int | float]]:
    """The scorer's value and details for every image, one row each."""
    with Meter(f"scoring with {key}", images.num_rows) as meter:
        for records in whole_groups(images, max(BATCH, scorer.settings.batch_size)):
            batch = batch_of(records, prompts)
            scores = check_scores(key, scorer.score(batch), batch.prompts)
            for row, record in enumerate(records):
                of = {name: record[name] for name in ("policy", "mode", "train_seed", "prompt_id", "sample")}
                for metric, values in {"score": scores.values, **scores.details}.items():
                    yield {**of, "scorer": key, "metric": metric, "value": float(values[row])}
            meter.advance(len(records))


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
        table = table_from_rows(score_rows(spec.key, scorer, images, prompts), "scores")
    finally:
        scorer.close()
    write_table(table, arguments.out, "scores", {SCORER_KEY.decode(): json.dumps(spec.to_json())})


if __name__ == "__main__":
    sys.exit(run_stage(main, Arguments))
