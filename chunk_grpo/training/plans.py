"""Chunk plans from their settings."""

from __future__ import annotations

from collections.abc import Sequence

from chunk_grpo.config.models import AdaptivePlan, EqualPlan, GuidedPlan, ListedPlan, PlanParams, SinglePlan
from chunk_grpo.core.adaptive import adaptive_plan
from chunk_grpo.core.chunking import ChunkPlan, equal_plan, guided_plan, listed_plan, single_plan, step_plan


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
