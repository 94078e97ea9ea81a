"""Score one policy's images with one scorer."""

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from chunk_grpo.artifacts import read_table, table_from_rows, write_table
from chunk_grpo.config import Params
from chunk_grpo.errors import DataError
from chunk_grpo.image_files import decode_image
from chunk_grpo.progress import Meter
from chunk_grpo.scorers.base import ScoreBatch, Scorer, check_scores
from chunk_grpo.scorers.registry import make_scorer
from stages._stage import argument, run_stage

BATCH = 256
"""Images decoded at a time; a score does not depend on it."""


@dataclass(frozen=True)
class Arguments:
    scorer: str = field(metadata=argument("name of the scorer"))
    prompts: str = field(metadata=argument("prompts/1, Parquet"))
    images: str = field(metadata=argument("images/1, Parquet"))
    out: str = field(metadata=argument("scores/1, Parquet", writes=True))


def score_rows(
    scorer: Scorer, images: pa.Table, prompts: Mapping[str, Mapping[str, str]]
) -> Iterator[dict[str, str | int | float]]:
    """The scorer's value and details for every image, one row each."""
    with Meter(f"scoring with {scorer.name}", images.num_rows) as meter:
        for chunk in images.to_batches(max_chunksize=BATCH):
            records = chunk.to_pylist()
            known = [prompts[r["prompt_id"]] for r in records]
            batch = ScoreBatch(
                images=np.stack([decode_image(r["image"]["bytes"], r["image"]["path"]) for r in records]),
                prompts=[p["prompt"] for p in known],
                metadata=[json.loads(p["metadata"]) for p in known],
            )
            scores = check_scores(scorer, scorer.score(batch), batch.prompts)
            for row, record in enumerate(records):
                key = {name: record[name] for name in ("policy", "mode", "train_seed", "prompt_id", "sample")}
                for metric, values in {"score": scores.values, **scores.details}.items():
                    yield {**key, "scorer": scorer.name, "metric": metric, "value": float(values[row])}
            meter.advance(len(records))


def main(params: Params, arguments: Arguments) -> None:
    """Write the scores table."""
    del params  # everything that matters is in the arguments
    scorer = make_scorer(arguments.scorer)
    prompts = {r["prompt_id"]: r for r in read_table(arguments.prompts, "prompts").to_pylist()}
    images = read_table(arguments.images, "images")
    for name in images["prompt_id"].unique().to_pylist():
        if name not in prompts:
            raise DataError(
                f"{arguments.images}: prompt_id {name!r} is not in {arguments.prompts}; run `dvc repro`"
            )
    write_table(table_from_rows(score_rows(scorer, images, prompts), "scores"), arguments.out, "scores")


if __name__ == "__main__":
    sys.exit(run_stage(main, Arguments))
