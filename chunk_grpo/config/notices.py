"""Remarks on parameters that are valid, but may not do what was meant."""

from __future__ import annotations

import json
from collections.abc import Iterator

from chunk_grpo.config.models import Params
from chunk_grpo.config.section import Section


def notices(params: Params) -> Iterator[str]:
    """Yield one sentence per remark, with its key."""
    # null is the absence of a setting, which leaving it out says as well
    defaults = [f"{key} = {json.dumps(value)}" for key, value in filled_in(params) if value is not None]
    if defaults:
        yield f"left out, so with their defaults: {', '.join(defaults)}"
    train, listed = params.train, params.prompts.train_count
    draws = len(train.seeds) * train.iterations * train.prompts_per_iteration
    used = draws + params.profile.num_prompts
    if used < listed:
        yield (
            f"prompts.train_count: {listed:,} train prompts are listed, but at most {used:,} are used: "
            f"{len(train.seeds)} x {train.iterations} x {train.prompts_per_iteration} = {draws:,} (train.seeds, "
            f"iterations, prompts_per_iteration) and {params.profile.num_prompts:,} (profile.num_prompts). Only these "
            "are encoded. Another train_count also changes which prompts are drawn."
        )


def filled_in(section: Section, name: str = "") -> Iterator[tuple[str, object]]:
    """Yield each key that params.yaml leaves out, and its value. Variants and scorers are not looked at."""
    for key in type(section).model_fields:
        value = getattr(section, key)
        if key not in section.model_fields_set:
            yield f"{name}{key}", value.model_dump(mode="json") if isinstance(value, Section) else value
        elif isinstance(value, Section):
            yield from filled_in(value, f"{name}{key}.")
