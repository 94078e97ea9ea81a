"""Choose the prompts of every split, from the toy world, files and benchmarks, and write the pictures to edit."""

import functools
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from chunk_grpo.artifacts import output_dir, table_from_rows, write_csv, write_json, write_table
from chunk_grpo.artifacts.pictures import write_pictures
from chunk_grpo.config import Params
from chunk_grpo.digests import Digests
from chunk_grpo.families.tokens import token_limits
from chunk_grpo.image_files import as_pictures, fitted, read_picture
from chunk_grpo.progress import Meter
from chunk_grpo.prompts.checks import check_lengths
from chunk_grpo.prompts.recorded import prompt_records
from chunk_grpo.prompts.scorer_data import check_scorer_data
from chunk_grpo.prompts.splits import Split, splits_of
from chunk_grpo.prompts.tables import compared_rows, findings_table, prompt_id, scheduled_rows, table_rows
from chunk_grpo.recorded import require_model, require_unchanged
from chunk_grpo.shapes.scene import Scene
from stages._stage import reads, run_stage, writes

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Arguments:
    model: str = reads("JSON of stage inputs: content of the base model's files")
    files: str = reads("JSON of stage inputs: content of the prompt files")
    training: str = writes("prompts/1, Parquet: splits train and eval")
    scheduled: str = writes(
        "folder for prompts/1: rows of `training` that each seed's training uses (seed-N.parquet), and those that the "
        "profile uses (profile.parquet)"
    )
    evaluation: str = writes("prompts/1, Parquet: all splits except train, of eval what is compared")
    pictures: str = writes("folder for pictures/1 and the pictures that prompts edit")
    report: str = writes("JSON: findings in the prompts, and the action taken")
    findings: str = writes("CSV: every prompt that broke a rule")


def drawn(scene: Scene) -> NDArray[np.uint8]:
    """Picture [H, W, 3] of a scene of the toy world."""
    from chunk_grpo.shapes.render import render  # here: importing torch takes seconds

    picture: NDArray[np.uint8] = as_pictures(render([scene]).numpy())[0]
    return picture


def write_edited(splits: Sequence[Split], height: int, width: int, location: str) -> None:
    """Write the pictures that prompts edit, at the size of the images."""
    pictures: dict[str, str | Scene] = {
        prompt_id(split.name, number): picture
        for split in splits
        for number, row in enumerate(split.rows)
        if (picture := row.picture or row.scene) is not None
    }
    with Meter("reading pictures", len(set(pictures.values()))) as meter:

        def read(picture: str | Scene) -> NDArray[np.uint8]:
            meter.advance()
            found = read_picture(Path(picture)) if isinstance(picture, str) else drawn(picture)
            return fitted(found, height, width)

        write_pictures(pictures, read, location)


def main(params: Params, arguments: Arguments) -> None:
    """Write the tables, and a report of prompts that were dropped, changed, or kept although suspicious."""
    model = params.model
    limits = functools.cache(
        lambda: token_limits(model.family, model.checkpoint, model.revision, model.max_sequence_length)
    )
    shape = params.model.height, params.model.width
    splits = list(splits_of(params.prompts, limits, shape))  # first: errors in prompt files before the model's
    check_scorer_data(params, splits)
    require_unchanged(prompt_records(params, Digests()), arguments.files)
    reports = {}
    for split in splits:
        report = check_lengths(split.rows, split.report, params.prompts.checks, limits())
        if report is not None:
            reports[split.name] = report
            for line in report.lines():
                _LOG.warning("%s: %s", split.name, line)
    require_model(params.model, arguments.model)
    rows = {split.name: table_rows(split) for split in splits}
    evaluated = rows | {"eval": compared_rows(rows["eval"], params)}
    for location, chosen in (
        (arguments.training, [*rows["train"], *rows["eval"]]),
        (arguments.evaluation, [row for name, of in evaluated.items() if name != "train" for row in of]),
    ):
        write_table(table_from_rows(chosen, "prompts"), location, "prompts")
    with output_dir(arguments.scheduled) as folder:
        for name, used in scheduled_rows(rows["train"], rows["eval"], params).items():
            write_table(table_from_rows(used, "prompts"), str(folder / f"{name}.parquet"), "prompts")
    write_edited(splits, *shape, arguments.pictures)
    write_json({name: report.as_json() for name, report in reports.items()}, arguments.report)
    write_csv(findings_table(reports), arguments.findings)


if __name__ == "__main__":
    sys.exit(run_stage(main, Arguments))
