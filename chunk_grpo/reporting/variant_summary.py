"""Description of variants, by the settings in which they differ, and of other compared policies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chunk_grpo.config import Params, VariantParams
from chunk_grpo.config.policies import AnyPolicy, ComparedImages
from chunk_grpo.core.choices import (
    ADVANTAGE_STDS,
    COMBINATIONS,
    CREDITS,
    LIKELIHOODS,
    OBJECTIVES,
    RATIO_NORMS,
    SDES,
    SELECTIONS,
    SOLVERS,
    STEP_WEIGHTS,
    TRUST_REGIONS,
    Choice,
)

_CHOICES: Mapping[str, Mapping[Any, Choice]] = {
    "sde": SDES,
    "solver": SOLVERS,
    "selection": SELECTIONS,
    "step_weights": STEP_WEIGHTS,
    "ratio_norm": RATIO_NORMS,
    "trust_region": TRUST_REGIONS,
    "likelihood": LIKELIHOODS,
    "advantage_std": ADVANTAGE_STDS,
    "credit": CREDITS,
    "combine": COMBINATIONS,
}


def recipe(variant: VariantParams) -> str:
    """Objective, plan, and every other setting of the variant that differs from its default."""
    own = variant.model_dump(exclude={"objective", "plan"}, exclude_defaults=True)
    values = variant.model_dump(mode="json", include=set(own))
    parts = [OBJECTIVES[variant.objective].label, f"plan {variant.plan}"]
    return ", ".join(parts + [_setting(key, values[key]) for key in own])


def origin(policy: AnyPolicy) -> str:
    """Where a compared policy or its images are from."""
    if isinstance(policy, ComparedImages):
        return f"images made elsewhere, {policy.path}"
    parts = [policy.path, policy.file, policy.revision and f"revision {policy.revision}"]
    return f"saved policy {', '.join(filter(None, parts))}"


def images_of(params: Params, variant: str) -> int:
    """Images that a variant draws per iteration; with branches, one group per branch point."""
    branching = params.variants[variant].branching
    of_prompt = params.train.group_size * (branching.points if branching else 1)
    return params.train.prompts_per_iteration * of_prompt


def mix_text(mix: Mapping[str, float]) -> str:
    """Format a weighted sum of scorers."""
    return " + ".join(f"{weight:g} × {scorer}" for scorer, weight in mix.items())


def short(value: float) -> str:
    """Format a number without padding: 0.3, 5e-5."""
    return f"{value:g}".replace("e-0", "e-")


def _setting(key: str, value: Any) -> str:
    """Describe one setting; settings without a wording here appear with their name and value."""
    if key in _CHOICES:
        return _CHOICES[key][value].label
    match key:
        case "train_chunks":
            return f"only {_chunks(value)} trained"
        case "replan_every":
            return f"plan recomputed {_every(value)}"
        case "clip_ranges":
            return f"clip ranges {_words(value)} by chunk"
        case "kl_coef":
            return f"KL coefficient {_words(value)}"
        case "controlled":
            return "with the controller"
        case "window":
            place = f"moves by {value['stride']} {_every(value['every'])}"
            if value["starts"] is not None:
                place = f"begins at one of the steps {_words(value['starts'])}, drawn in each iteration"
            return f"noise in a window of {_steps(value['num_steps'])} that {place}"
        case "branching":
            return f"branches at {_steps(value['points'])} with {value['children']} children each"
        case "chunk_rewards":
            mixes = "; ".join(f"chunk {chunk}: {mix_text(mix)}" for chunk, mix in enumerate(value))
            return f"rewards by chunk ({mixes})"
    return f"{key.replace('_', ' ')} {_words(value)}"


def _words(value: object) -> str:
    """Format a setting's value without quotes."""
    if isinstance(value, list):
        return "[" + ", ".join(_words(inner) for inner in value) + "]"
    return short(value) if isinstance(value, float) else str(value)


def _every(iterations: int) -> str:
    return "every iteration" if iterations == 1 else f"every {iterations} iterations"


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"


def _chunks(numbers: list[int]) -> str:
    names = [str(number) for number in numbers]
    return f"chunk {names[0]}" if len(names) == 1 else f"chunks {', '.join(names[:-1])} and {names[-1]}"
