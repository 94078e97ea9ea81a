"""A workspace that receives the output of a synthetic run stage by stage."""

import shutil
from pathlib import Path

from chunk_grpo.artifacts import table_from_rows, write_table

from .conftest import SCORERS, SEEDS, VARIANTS, Run, plan_rows, write_run

PLANS = {
    "step": (1,) * 16,
    "listed": (2, 3, 4, 7),
    "guided": (2, 3, 5, 6),
    "equal-4": (4,) * 4,
    "single": (16,),
}

INPUTS = {
    "profile_l1": ("l1_profile.parquet", "profile/l1_profile.parquet"),
    "chunk_boundaries": ("chunks", "chunks"),
    "prepare_prompts": ("prompts.parquet", "prompts/evaluation.parquet"),
    "generate_base": ("images/base", "images/base"),
    **{
        f"{stage}@{v}-{seed}": (f"{folder}/{v}/seed-{seed}", f"{folder}/{v}/seed-{seed}")
        for stage, folder in (("train", "train"), ("generate", "images"))
        for v in VARIANTS
        for seed in SEEDS
    },
    **{
        f"score@{p}-{s}": (f"scores/{p}/{s}.parquet", f"scores/{p}/{s}.parquet")
        for p in ("base", *VARIANTS)
        for s in SCORERS
    },
}
"""Stage to its outputs: path in a synthetic run, and path below artifacts/."""


def planned_run(root: Path) -> Run:
    """A synthetic run with all plans of its params.yaml."""
    made = write_run(root)
    for plan, sizes in PLANS.items():
        table = table_from_rows(plan_rows(plan, sizes), "chunk_plan")
        write_table(table, root / "chunks" / f"{plan}.parquet", "chunk_plan")
    return made


class Workspace:
    """A workspace that contains only params.yaml at first."""

    def __init__(self, root: Path, done: Run) -> None:
        self.root, self._done = root, done.root
        root.mkdir()
        shutil.copy(done.root / "params.yaml", root)

    def finish(self, *stages: str) -> None:
        """Copy the outputs of these stages into the workspace."""
        for stage in stages:
            source, target = INPUTS[stage]
            place = self.root / "artifacts" / target
            place.parent.mkdir(parents=True, exist_ok=True)
            if (self._done / source).is_dir():
                shutil.copytree(self._done / source, place)
            else:
                shutil.copy(self._done / source, place)
