"""Score one policy's images with one scorer."""

import json
import sys
from contextlib import closing
from dataclasses import dataclass

from chunk_grpo.artifacts import join, read_json, read_table, table_from_rows, write_table
from chunk_grpo.artifacts.kept import forget_recorded
from chunk_grpo.artifacts.pictures import INDEX, open_pictures
from chunk_grpo.artifacts.schemas import SCORER_KEY
from chunk_grpo.artifacts.table_checks import check_scale
from chunk_grpo.config import Params
from chunk_grpo.config.scorers import InProcess
from chunk_grpo.library.scoring import images_to_score, kept_scores, score_rows
from chunk_grpo.parallel import Workers
from chunk_grpo.scorers.running.placing import place_checked
from chunk_grpo.scorers.running.spec import spec_from
from stages._launch.processes import run_processes
from stages._stage import reads, writes


@dataclass(frozen=True)
class Arguments:
    spec: str = reads("JSON of stage check_scorers: spec of the scorer")
    prompts: str = reads("prompts/1, Parquet")
    pictures: str = reads("folder with pictures/1 and the pictures that prompts edit")
    images: str = reads("images/1, Parquet, or a folder with seed-N/images.parquet of each training seed")
    out: str = writes("scores/2, Parquet")


def tables_of(params: Params, arguments: Arguments) -> list[str]:
    """Tables of the images, in the order of the training seeds."""
    if arguments.images.endswith(".parquet"):
        return [arguments.images]
    return [join(arguments.images, f"seed-{seed}", "images.parquet") for seed in params.train.seeds]


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
    spec = spec_from(read_json(arguments.spec), arguments.spec)
    prompts = {r["prompt_id"]: r for r in read_table(arguments.prompts, "prompts").to_pylist()}
    tables = tables_of(params, arguments)
    images = images_to_score(tables, spec, prompts, arguments.prompts)
    of_prompts = (arguments.prompts, join(arguments.pictures, INDEX))
    with (
        closing(place_checked(spec, params.scorers, params.executors)) as scorer,
        open_pictures(arguments.pictures) as pictures,
    ):
        kept = kept_scores(spec, scorer.settings, tables, of_prompts, arguments.out)
        rows = score_rows(spec.key, scorer, images, prompts, kept, workers, spec.refusals, pictures)
        table = table_from_rows(rows, "scores")
        check_scale(table, arguments.out, *scorer.settings.value_scale[1:])
    if workers.is_main:
        write_table(table, arguments.out, "scores", {SCORER_KEY.decode(): json.dumps(spec.model_dump(mode="json"))})
    if workers.is_main:
        kept.end(keep_parts=True)


if __name__ == "__main__":
    sys.exit(run_processes(main, Arguments, divisible=processes_of))
