"""Score a few made-up images with every scorer before any long stage, and print what scoring will take."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from chunk_grpo.artifacts import join, read_json, read_table, write_json
from chunk_grpo.artifacts.pictures import open_pictures
from chunk_grpo.config import Params
from chunk_grpo.library.scoring import edited_by
from chunk_grpo.planning.images import ScoredImages, scored_images
from chunk_grpo.progress import Meter, duration
from chunk_grpo.scorers.reward import Reward
from chunk_grpo.scorers.running.placing import place_checked
from chunk_grpo.scorers.running.spec import spec_from
from chunk_grpo.scorers.trial import Sample, TrialTimes, spread, try_scorer
from stages._stage import reads, run_stage, writes

TRIED = {"trial": "done"}
"""Content of the output: always the same, so that a new trial repeats no stage that waits for it."""

LOG_WIDTH = 110
"""Columns of the table where the output is not a terminal."""

Row = Mapping[str, str]
"""Row of prompts/1."""


@dataclass(frozen=True)
class Arguments:
    specs: str = reads("folder with SCORER.json of stage check_scorers")
    training: str = reads("JSON: specs of the scorers used in training")
    prompts: str = reads("prompts/1, Parquet: splits train and eval")
    evaluation: str = reads("prompts/1, Parquet: all splits except train")
    pictures: str = reads("folder with pictures/1 and the pictures that prompts edit")
    out: str = writes("JSON: the same content after every trial")


def by_split(*tables: str) -> dict[str, list[Row]]:
    """Rows of prompts by split; a split of a later table replaces that of an earlier one."""
    found: dict[str, list[Row]] = {}
    for table in tables:
        rows = read_table(table, "prompts").to_pylist()
        for split in {row["split"] for row in rows}:
            found[split] = [row for row in rows if row["split"] == split]
    return found


def samples_of(
    params: Params, splits: Sequence[str], prompts: Mapping[str, Sequence[Row]], pictures: Mapping[str, Path]
) -> list[Sample]:
    """Prompts of each split, with the size of its images in the run and the pictures that they edit."""
    found = []
    for split in splits:
        height = params.model.height if split == "train" else params.generate.height
        width = params.model.width if split == "train" else params.generate.width
        rows = spread(prompts[split], params.trial.images)
        sources = edited_by([row["prompt_id"] for row in rows], pictures, (height, width))
        found.append(Sample(split, rows, height, width, sources))
    return found


def trial(params: Params, arguments: Arguments) -> Iterator[tuple[str, ...]]:
    """Try each scorer where it will run, on all of its splits and, if it is a reward, on train prompts.

    Yields rows of the table.
    """
    prompts = by_split(arguments.prompts, arguments.evaluation)
    counts = {split: len(rows) for split, rows in prompts.items()}
    in_training = read_json(arguments.training)
    with Meter("trying scorers", len(params.scorers)) as meter, open_pictures(arguments.pictures) as pictures:
        for key in params.scorers:
            location = join(arguments.specs, f"{key}.json")
            spec = spec_from(read_json(location), location)
            splits = (*(("train",) if key in params.rewards else ()), *spec.splits)
            scorer = place_checked(spec, params.scorers, params.executors)
            try:
                if key in in_training:
                    Reward({key: scorer}, {key: 1.0})  # refuses groupwise scorers
                samples = samples_of(params, splits, prompts, pictures)
                times = try_scorer(key, scorer, samples, params.generate.images_per_prompt)
            finally:
                scorer.close()
            meter.advance(1)
            yield key, *cells(times, scored_images(params, key, counts))


def cells(times: TrialTimes, images: ScoredImages) -> tuple[str, ...]:
    """Times of a trial, and the images that the scorer judges in the run."""
    one, whole = "", ""
    if times.image is not None:
        one, whole = f"{times.image:.3g} s", duration(times.loading + times.image * images.total)
    return duration(times.loading), one, f"{images.training:,}", f"{images.evaluation:,}", whole


def show(rows: Sequence[tuple[str, ...]]) -> None:
    """Print the table."""
    table = Table(title="Trial of the scorers", title_justify="left")
    table.add_column("scorer", overflow="fold")
    for head in ("loading", "an image", "images in training", "in evaluation", "at most"):
        table.add_column(head, justify="right")
    for row in rows:
        table.add_row(*row)
    console = Console(stderr=True)
    if not console.is_terminal:
        console.width = LOG_WIDTH
    console.print(table)
    console.print(
        "At most: loading once, then one image after the other as here. Batches on a GPU, several processes and "
        "an early stop take less; each stage loads anew.",
        highlight=False,
    )


def main(params: Params, arguments: Arguments) -> None:
    """Try the scorers, unless `trial.images` is 0, and write the constant file."""
    if params.trial.images:
        show(list(trial(params, arguments)))
    write_json(TRIED, arguments.out)


if __name__ == "__main__":
    sys.exit(run_stage(main, Arguments))
