"""Build every chunk plan of params.yaml from the measured profile, with the Eq. (16) weights of its chunks.

Each variant gets a copy of its plan: its training depends on that file alone.
"""

import sys
from dataclasses import dataclass

from chunk_grpo.artifacts import join, table_from_rows, write_json, write_table
from chunk_grpo.config import Params
from chunk_grpo.training.plans import build_plan, mean_profile, plan_rows
from stages._stage import reads, run_stage, writes


@dataclass(frozen=True)
class Arguments:
    profile: str = reads("l1_profile/1, Parquet")
    out: str = writes("folder for PLAN.parquet (chunk_plan/1) and chunks.json")
    variants: str = writes("folder for VARIANT.parquet: chunk_plan/1 of each variant")


def main(params: Params, arguments: Arguments) -> None:
    """Write every plan, and the sizes of all plans to one JSON file."""
    profile = mean_profile(arguments.profile, params.sampling.num_sde_steps)
    plans = {name: build_plan(settings, profile) for name, settings in params.chunks.plans.items()}
    tables = {name: table_from_rows(plan_rows(name, plan, profile), "chunk_plan") for name, plan in plans.items()}
    for name, table in tables.items():
        write_table(table, join(arguments.out, f"{name}.parquet"), "chunk_plan")
    for name, variant in params.variants.items():
        write_table(tables[variant.plan], join(arguments.variants, f"{name}.parquet"), "chunk_plan")
    write_json({name: list(plan.sizes) for name, plan in sorted(plans.items())}, join(arguments.out, "chunks.json"))


if __name__ == "__main__":
    sys.exit(run_stage(main, Arguments))
