"""Measure the relative L1 distance of Eq. (15) at each step of the base model, under the SDE and the ODE."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from chunk_grpo.artifacts import table_from_rows, write_csv, write_table
from chunk_grpo.config import Params
from chunk_grpo.families.base import Family
from chunk_grpo.families.prompts import PromptSet
from chunk_grpo.library.checkpoint import recorded_checkpoint
from chunk_grpo.library.profiles import profiled
from chunk_grpo.library.stored_prompts import encoded_prompts
from chunk_grpo.library.times import times_of
from chunk_grpo.parallel import Workers
from stages._launch.processes import run_processes
from stages._stage import reads, writes


@dataclass(frozen=True)
class Arguments:
    model: str = reads("JSON of stage inputs: content of the base model's files")
    prompts: str = reads("prompts/1, Parquet: the profile's prompts")
    embeddings: str = reads("folder with embeddings/2 and its shards")
    out: str = writes("l1_profile/1, Parquet")
    plot: str = writes("mean curves, one column per sampler, CSV for `dvc plots`")


Row = dict[str, str | int | float]
"""Row of l1_profile/1."""


def profile_rows(family: Family, prompts: PromptSet, params: Params, workers: Workers) -> Iterator[Row]:
    """Rows of l1_profile/1, one per sampler, prompt, seed and step, in the main process."""
    sampling, settings = params.sampling, params.profile
    times = times_of(sampling.num_steps, sampling.shift, lambda: family).tolist()
    seeds = range(settings.seed, settings.seed + settings.num_seeds)
    for curves in profiled(family, prompts, seeds, sampling, settings.batch_size, workers, with_ode=True):
        for sampler, distances in curves.distances.items():
            for prompt_id, seed, curve in zip(curves.prompt_ids, curves.seeds, distances.tolist(), strict=True):
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
    with encoded_prompts(arguments.prompts, arguments.embeddings, params.sampling.cfg_scale) as stored:
        prompts = stored.require(stored.of())
        family = recorded_checkpoint(params.model, arguments.model, params.sampling).loaded("transformer")
        table = table_from_rows(profile_rows(family, prompts, params, workers), "l1_profile")
    if workers.is_main:
        write_table(table, arguments.out, "l1_profile")
        write_csv(mean_curves(table), arguments.plot)


if __name__ == "__main__":
    sys.exit(run_processes(main, Arguments))
