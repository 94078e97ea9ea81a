r"""Write images of the pipeline for GenEval's original evaluator, and compare its results with ours.

    python -m infra.geneval_folders write artifacts/images/chunk/seed-0/images.parquet FOLDER \
        --mode tuned --train-seed 0
    # then, where mmdet is installed: python evaluation/evaluate_images.py FOLDER --outfile results.jsonl
    python -m infra.geneval_folders read results.jsonl --scores artifacts/scores/chunk/geneval.parquet \
        --mode tuned --train-seed 0

`read` prints the share of correct images by tag. With the scores of the scorer `geneval` it also prints ours, and the
number of images on which both agree. Prompts are numbered in the order of the prompts table.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.console import Console
from rich.table import Table

from chunk_grpo.artifacts import read_parts, read_table
from chunk_grpo.artifacts.layout import Layout
from chunk_grpo.errors import ChunkGrpoError, ConfigError, DataError
from chunk_grpo.library.scoring import GROUP, whole_groups
from chunk_grpo.progress import Meter
from chunk_grpo.scorers.geneval.folders import OriginalResult, read_results, write_prompt_folder
from chunk_grpo.scorers.geneval.rules import overall, tag_means

BASE = "base"


def prompts_of(location: str, split: str) -> list[dict[str, Any]]:
    """Prompts of a split, in the table's order."""
    rows = [row for row in read_table(location, "prompts").to_pylist() if row["split"] == split]
    if not rows:
        raise DataError(f"{location}: must hold prompts of the split {split!r}, got none")
    return rows


def chosen_rows(
    options: argparse.Namespace, location: str, kind: Literal["images", "scores"], columns: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """Rows of the mode and the training seed in `options`, with these columns, by default all.

    A mode other than `base` needs a seed. If there are no rows, the error lists the existing modes and seeds.
    """
    rows = [row for part in read_parts(location, kind, columns) for row in part.to_pylist()]
    there = sorted({(row["mode"], row["train_seed"]) for row in rows})
    seeds = ", ".join(str(seed) for mode, seed in there if mode == options.mode) or "none"
    if options.train_seed is None:
        raise ConfigError(
            f"--train-seed: required with --mode {options.mode}; {location} has the seeds {seeds} in this mode"
        )
    chosen = [row for row in rows if is_chosen(options, row)]
    if not chosen:
        modes = ", ".join(sorted({mode for mode, _ in there})) or "none"
        raise DataError(
            f"{location}: must hold {kind} {named(options)}, got none; it has the modes {modes}, and in mode "
            f"{options.mode} the seeds {seeds}"
        )
    return chosen


def is_chosen(options: argparse.Namespace, row: Mapping[str, Any]) -> bool:
    return (row["mode"], row["train_seed"]) == (options.mode, options.train_seed)


def named(options: argparse.Namespace) -> str:
    """Mode and seed, for messages."""
    return f"in mode {options.mode} of training seed {options.train_seed}"


def write(options: argparse.Namespace) -> None:
    """Write one folder per prompt, with the images of one mode and training seed."""
    prompts = prompts_of(options.prompts, options.split)
    chosen = chosen_rows(options, options.images, "images", GROUP)
    groups = Counter(tuple(row[name] for name in GROUP) for row in chosen)
    missing = sorted({prompt["prompt_id"] for prompt in prompts} - {row["prompt_id"] for row in chosen})
    if missing:
        raise DataError(
            f"{options.images}: must hold images of every prompt of {options.split!r} {named(options)}, got none of "
            f"{missing[0]!r} and {len(missing) - 1} others"
        )
    numbers = {prompt["prompt_id"]: number for number, prompt in enumerate(prompts)}
    rows = (row for part in read_parts(options.images, "images") for row in part.to_pylist())
    wanted = (row for row in rows if row["prompt_id"] in numbers and is_chosen(options, row))
    with Meter("writing folders", len(prompts)) as meter:
        for group in whole_groups(wanted, groups, 1):
            number = numbers[group[0]["prompt_id"]]
            record = {**json.loads(prompts[number]["metadata"]), "prompt": prompts[number]["prompt"]}
            images = [row["image"]["bytes"] for row in sorted(group, key=lambda row: int(row["sample"]))]
            write_prompt_folder(Path(options.out), number, record, images)
            meter.advance(1)


def read(options: argparse.Namespace) -> None:
    """Print the original evaluator's results, and ours for the same images."""
    results = read_results(Path(options.results))
    tags = [result.tag for result in results]
    columns = {"original": np.array([float(result.correct) for result in results])}
    if options.scores:
        columns["geneval-hf"] = our_scores(options, results)
    means = {name: tag_means(tags, values) for name, values in columns.items()}
    table = Table("tag", "images", *columns)
    for tag in means["original"]:
        table.add_row(tag, str(tags.count(tag)), *(f"{found[tag]:.3f}" for found in means.values()))
    if len(means["original"]) == 6:
        table.add_row("Overall", str(len(tags)), *(f"{overall(found):.3f}" for found in means.values()))
    console = Console()
    console.print(table)
    if options.scores:
        alike = int((columns["original"] == columns["geneval-hf"]).sum())
        console.print(f"{alike} of {len(results)} images are judged alike")


def our_scores(options: argparse.Namespace, results: Sequence[OriginalResult]) -> np.ndarray[Any, Any]:
    """Our scorer's values for the evaluator's images, in the evaluator's order."""
    ids = [prompt["prompt_id"] for prompt in prompts_of(options.prompts, options.split)]
    scores = {
        (row["prompt_id"], row["sample"]): row["value"]
        for row in chosen_rows(options, options.scores, "scores")
        if row["metric"] == "score"
    }
    values = []
    for result in results:
        key = (ids[result.prompt_number] if result.prompt_number < len(ids) else None, result.sample)
        if key not in scores:
            raise DataError(
                f"{options.scores}: no score of sample {result.sample} of prompt {result.prompt_number} of the split "
                f"{options.split!r} {named(options)}"
            )
        values.append(scores[key])
    return np.array(values)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code is 2 for invalid options and 3 for invalid files."""
    parser = argparse.ArgumentParser(
        prog="python -m infra.geneval_folders",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True)
    writing, reading = commands.add_parser("write"), commands.add_parser("read")
    writing.add_argument("images", help="images/1, Parquet")
    writing.add_argument("out", help="folder to write; created if missing")
    reading.add_argument("results", help="results file of the evaluator")
    reading.add_argument("--scores", help="scores/2 of the scorer geneval, Parquet, to compare with")
    for command, run in ((writing, write), (reading, read)):
        command.add_argument("--prompts", default=Layout().prompts, help="prompts/1, Parquet")
        command.add_argument("--split", default="geneval", help="split of the prompts (default: geneval)")
        command.add_argument("--mode", default=BASE, help="mode of the images: base, tuned or hybrid (default: base)")
        command.add_argument(
            "--train-seed", type=int, help="training seed of the variant; required with modes tuned and hybrid"
        )
        command.set_defaults(run=run)
    options = parser.parse_args(argv)
    if options.mode == BASE and options.train_seed is None:
        options.train_seed = -1  # as in the tables
    try:
        options.run(options)
    except ChunkGrpoError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
