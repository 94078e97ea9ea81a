"""Build every chunk plan of params.yaml from the measured profile, with the Eq. (16) weights of its chunks.

Each variant gets a copy of its plan: its training depends on that file alone.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow.compute as pc

from chunk_grpo.artifacts import join, read_table, table_from_rows, write_json, write_table
from chunk_grpo.config import Params
from chunk_grpo.core.chunk_sampling import chunk_weights
from chunk_grpo.core.chunking import ChunkPlan
from chunk_grpo.errors import DataError
from chunk_grpo.training.plans import build_plan
from stages._stage import argument, run_stage


@dataclass(frozen=True)
class Arguments:
    profile: str = field(metadata=argument("l1_profile/1, Parquet"))
    out: str = field(metadata=argument("folder for PLAN.parquet (chunk_plan/1) and chunks.json", writes=True))
    variants: str = field(
        metadata=argument("folder for VARIANT.parquet: chunk_plan/1 of each variant", writes=True)
    )


def mean_profile(location: str, num_sde_steps: int) -> list[float]:
    """Mean relative L1 distance of each trainable step under the SDE, from the table at `location`.

    It must have `num_sde_steps` + 1 steps.
    """
    table = read_table(location, "l1_profile")
    noisy = table.filter(pc.equal(table["sampler"], "sde"))
    means = noisy.group_by("step", use_threads=False).aggregate([("l1_rel", "mean")]).sort_by("step")
    values = [float(value) for value in means["l1_rel_mean"].to_pylist()]
    if len(values) != num_sde_steps + 1:
        raise DataError(
            f"{location}: must have sampling.num_steps = {num_sde_steps + 1} steps, got {len(values)}; run `dvc repro`"
        )
    return values[:num_sde_steps]


def plan_rows(name: str, plan: ChunkPlan, profile: Sequence[float]) -> list[dict[str, str | int | float]]:
    """Rows of chunk_plan/1, one per chunk."""
    rows: list[dict[str, str | int | float]] = []
    for chunk, (first, size, weight) in enumerate(
        zip(plan.first_steps, plan.sizes, chunk_weights(profile, plan).tolist(), strict=True)
    ):
        mean = sum(profile[first : first + size]) / size
        place: dict[str, str | int | float] = {
            "plan": name,
            "chunk": chunk,
            "first_step": first,
            "num_steps": size,
        }
        rows.append({**place, "mean_l1": mean, "weight": weight})
    return rows


def main(params: Params, arguments: Arguments) -> None:
    """Write every plan, and the sizes of all plans to one JSON file."""
    profile = mean_profile(arguments.profile, params.sampling.num_sde_steps)
    plans = {name: build_plan(settings, profile) for name, settings in params.chunks.plans.items()}
    tables = {
        name: table_from_rows(plan_rows(name, plan, profile), "chunk_plan") for name, plan in plans.items()
    }
    for name, table in tables.items():
        write_table(table, join(arguments.out, f"{name}.parquet"), "chunk_plan")
    for name, variant in params.variants.items():
        write_table(tables[variant.plan], join(arguments.variants, f"{name}.parquet"), "chunk_plan")
    write_json(
        {name: list(plan.sizes) for name, plan in sorted(plans.items())}, join(arguments.out, "chunks.json")
    )


if __name__ == "__main__":
    sys.exit(run_stage(main, Arguments))
