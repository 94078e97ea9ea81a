"""Remarks on parameters that are valid, but may not do what was meant."""

from __future__ import annotations

from collections.abc import Iterator

from chunk_grpo.config.models import Params


def notices(params: Params) -> Iterator[str]:
    """Yield one sentence per remark, with its key."""
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
