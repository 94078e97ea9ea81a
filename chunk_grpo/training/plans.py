"""Chunk plans: built from their settings and a profile, and as tables."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow.compute as pc
import torch
from torch import Tensor

from chunk_grpo.artifacts import read_table
from chunk_grpo.config.models import AdaptivePlan, EqualPlan, GuidedPlan, ListedPlan, PlanParams, SinglePlan
from chunk_grpo.core.adaptive import adaptive_plan
from chunk_grpo.core.chunk_sampling import chunk_weights
from chunk_grpo.core.chunking import ChunkPlan, equal_plan, guided_plan, listed_plan, single_plan, step_plan
from chunk_grpo.errors import DataError


def build_plan(settings: PlanParams, profile: Sequence[float]) -> ChunkPlan:
    """Build the plan of `settings` over the profile's noisy steps."""
    steps = len(profile)
    if isinstance(settings, ListedPlan):
        return listed_plan(settings.sizes, steps)
    if isinstance(settings, EqualPlan):
        return equal_plan(settings.chunk_size, steps)
    if isinstance(settings, GuidedPlan):
        return guided_plan(profile, settings.num_chunks)
    if isinstance(settings, AdaptivePlan):  # for inspection only: training makes one plan per trajectory
        return adaptive_plan(profile, settings.max_size)
    return single_plan(steps) if isinstance(settings, SinglePlan) else step_plan(steps)


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
        place: dict[str, str | int | float] = {"plan": name, "chunk": chunk, "first_step": first, "num_steps": size}
        rows.append({**place, "mean_l1": mean, "weight": weight})
    return rows


def read_plan(location: str, name: str, num_sde_steps: int) -> tuple[ChunkPlan, Tensor]:
    """The plan `name` of the table at `location`, which has `num_sde_steps` steps, and its Eq. (16) weights [K]."""
    rows = read_table(location, "chunk_plan", {"plan": name}).to_pylist()
    rows.sort(key=lambda row: int(row["chunk"]))
    plan = ChunkPlan(tuple(row["num_steps"] for row in rows))
    if plan.num_steps != num_sde_steps:
        raise DataError(
            f"{location}: must cover sampling.num_steps - 1 = {num_sde_steps} steps, got {plan.num_steps}; "
            "run `dvc repro`"
        )
    return plan, torch.tensor([row["weight"] for row in rows], dtype=torch.float64)
