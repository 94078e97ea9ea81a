"""Measure the relative L1 distance of Eq. (15) at each step of the base model, under the SDE and the ODE."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from torch import Tensor

from chunk_grpo.artifacts import table_from_rows, write_csv, write_table
from chunk_grpo.config import Params
from chunk_grpo.core.sde import step_noise
from chunk_grpo.families.base import Family
from chunk_grpo.families.prompts import PromptSet
from chunk_grpo.library.profiles import curves
from chunk_grpo.machines import send_files
from chunk_grpo.parallel import Workers
from chunk_grpo.progress import Meter
from stages._inputs import encoded_prompts, load_model
from stages._launch.processes import run_processes
from stages._stage import argument, inputs_of
from stages._times import times_of


@dataclass(frozen=True)
class Arguments:
    model: str = field(
        metadata=argument("JSON of stage inputs: content of the base model's files", reads=True)
    )
    prompts: str = field(metadata=argument("prompts/1, Parquet: the profile's prompts", reads=True))
    embeddings: str = field(metadata=argument("folder with embeddings/2 and its shards", reads=True))
    out: str = field(metadata=argument("l1_profile/1, Parquet", writes=True))
    plot: str = field(
        metadata=argument("mean curves, one column per sampler, CSV for `dvc plots`", writes=True)
    )


Row = dict[str, str | int | float]
"""Row of l1_profile/1."""


def profile_rows(family: Family, prompts: PromptSet, params: Params, workers: Workers) -> Iterator[Row]:
    """Rows of l1_profile/1, one per sampler, prompt, seed and step, in the main process."""
    sampling, settings = params.sampling, params.profile
    times = times_of(sampling, lambda: family)
    noise = step_noise(sampling.sde, times, sampling.eta)
    jobs = [
        (row, settings.seed + number) for row in range(len(prompts)) for number in range(settings.num_seeds)
    ]
    batches = [
        jobs[first : first + settings.batch_size] for first in range(0, len(jobs), settings.batch_size)
    ]

    def measure(batch: Sequence[tuple[int, int]]) -> list[Row]:
        rows = prompts.rows([row for row, _ in batch])
        names = [(name, seed) for name, (_, seed) in zip(rows.ids, batch, strict=True)]
        found = curves(family, rows, [seed for _, seed in batch], times, noise, with_ode=True)
        return [row for kind, values in found.items() for row in _rows(kind, names, values, times.tolist())]

    with Meter("profiling", len(jobs)) as meter:
        for number, rows in enumerate(workers.in_order(batches, measure)):
            yield from rows
            meter.advance(len(batches[number]))


def _rows(sampler: str, names: list[tuple[str, int]], values: Tensor, times: list[float]) -> Iterator[Row]:
    for (prompt_id, seed), curve in zip(names, values.tolist(), strict=True):
        for step, l1_rel in enumerate(curve):
            place = {"step": step, "t": times[step], "t_next": times[step + 1]}
            yield {"sampler": sampler, "prompt_id": prompt_id, "seed": seed, **place, "l1_rel": l1_rel}


def mean_curves(table: pa.Table) -> pa.Table:
    """Mean distance of each step, one column per sampler: `dvc plots` draws one line per column."""
    mean = table.group_by(["sampler", "step"], use_threads=False).aggregate([("l1_rel", "mean")])
    curves = {name: mean.filter(pc.field("sampler") == name).sort_by("step") for name in ("sde", "ode")}
    means = {name: curve["l1_rel_mean"] for name, curve in curves.items()}
    return pa.table({"step": curves["sde"]["step"], **means})


def main(params: Params, arguments: Arguments) -> None:
    """Write the profile and its mean curves."""
    workers = Workers()
    send_files(inputs_of(arguments))
    with encoded_prompts(arguments.prompts, arguments.embeddings, params.sampling) as stored:
        prompts = stored.require(stored.of())
        family = load_model(params, arguments.model, ("transformer",), params.sampling)
        table = table_from_rows(profile_rows(family, prompts, params, workers), "l1_profile")
    if not workers.is_main:
        return
    write_table(table, arguments.out, "l1_profile")
    write_csv(mean_curves(table), arguments.plot)


if __name__ == "__main__":
    sys.exit(run_processes(main, Arguments))
