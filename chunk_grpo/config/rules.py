"""Which values of params.yaml fit together: rules over more than one key.

Each rule reads the sections named beside it in RULES, which are valid in themselves by then.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from chunk_grpo.config.models import (
    AWAITED_SCORERS,
    KNOWN_SCORERS,
    ChunksParams,
    EqualPlan,
    GenerateParams,
    GuidedPlan,
    ListedPlan,
    ProfileParams,
    PromptsParams,
    ReportParams,
    SamplingParams,
    StepPlan,
    TrainParams,
    VariantParams,
)
from chunk_grpo.config.problems import Problem, nearest, show

Rule: TypeAlias = Callable[..., Iterator[Problem]]
Variants: TypeAlias = Mapping[str, VariantParams]

RESERVED_VARIANTS = ("base",)
"""`base` names the untrained policy in every artifact."""

MIN_GUIDED_CHUNK = 2
"""The shortest chunk a guided plan may have, in steps (a line needs two points)."""


def prompts_path_fits_source(prompts: PromptsParams) -> Iterator[Problem]:
    """A path exactly where there is a file to read; indirect prompts only in the toy world."""
    if prompts.source == "file" and not prompts.path:
        yield Problem(("prompts", "path"), "required with source: file, got null")
    if prompts.source != "file" and prompts.path is not None:
        yield Problem(
            ("prompts", "path"), f"must be null with source: {prompts.source}, got {show(prompts.path)}"
        )
    if prompts.source == "file" and prompts.wise_count:
        yield Problem(("prompts", "wise_count"), f"must be 0 with source: file, got {prompts.wise_count}")


def plans_fit_steps(chunks: ChunksParams, sampling: SamplingParams) -> Iterator[Problem]:
    """Every plan covers the T - 1 noisy steps of a trajectory (Table 6: [2, 3, 4, 7] and T = 17)."""
    steps = sampling.num_sde_steps
    noisy = f"sampling.num_steps - 1 = {steps} (the last step carries no noise and is not trained)"
    for name, plan in chunks.plans.items():
        path = ("chunks", "plans", name)
        if isinstance(plan, ListedPlan) and sum(plan.sizes) != steps:
            yield Problem(
                (*path, "sizes"),
                f"must sum to {noisy}, got {list(plan.sizes)}, which sums to {sum(plan.sizes)}",
            )
        if isinstance(plan, EqualPlan) and plan.size > steps:
            yield Problem((*path, "size"), f"must be <= {noisy}, got {plan.size}")
        if isinstance(plan, GuidedPlan) and MIN_GUIDED_CHUNK * plan.num_chunks > steps:
            most = steps // MIN_GUIDED_CHUNK
            yield Problem(
                (*path, "num_chunks"),
                f"must be <= {most}: {MIN_GUIDED_CHUNK} steps a chunk at least and {noisy}, "
                f"got {plan.num_chunks}",
            )


def variant_plans_exist(variants: Variants, chunks: ChunksParams) -> Iterator[Problem]:
    """A variant names a plan that is there, and of the kind its objective needs."""
    for name, variant in variants.items():
        path = ("variants", name, "plan")
        plan = chunks.plans.get(variant.plan)
        if plan is None:
            guess = nearest(variant.plan, chunks.plans)
            hint = f"did you mean {guess!r}? " if guess else ""
            plans = ", ".join(chunks.plans)
            yield Problem(path, f"must be a name in chunks.plans, got {variant.plan!r}; {hint}there: {plans}")
        elif variant.objective == "step" and not isinstance(plan, StepPlan):
            yield Problem(
                path, f"objective: step needs a plan of kind: step, got {variant.plan!r} ({plan.kind})"
            )


def variant_names_are_free(variants: Variants) -> Iterator[Problem]:
    """No variant takes the name of the untrained policy."""
    for name in variants:
        if name in RESERVED_VARIANTS:
            yield Problem(("variants", name), "this name means the untrained policy; choose another")


def fraction_selects_a_chunk(
    variants: Variants, chunks: ChunksParams, sampling: SamplingParams, train: TrainParams
) -> Iterator[Problem]:
    """At least one chunk is trained: int(K * fraction) >= 1, K cut down as in the released code."""
    for name, variant in variants.items():
        plan = chunks.plans.get(variant.plan)
        if plan is None:
            continue
        own = variant.fraction is not None
        fraction = variant.fraction if variant.fraction is not None else train.fraction
        count = plan.chunk_count(sampling.num_sde_steps)
        if int(count * fraction) < 1:
            remedy = "raise it" if own else f"raise train.fraction, or set variants.{name}.fraction"
            yield Problem(
                ("variants", name, "fraction"),
                f"int(chunks * fraction) must be >= 1, got int({count} * {fraction}) = 0 "
                f"with plan {variant.plan!r}; {remedy}",
            )


def scorers_are_known(rewards: Mapping[str, float], scorers: tuple[str, ...]) -> Iterator[Problem]:
    """Rewards and evaluation take scorers that this version holds."""
    for name in rewards:
        yield from _known(("rewards", name), name)
    for position, name in enumerate(scorers):
        yield from _known(("scorers", position), name)
    yield from _unique(("scorers",), scorers)
    for name in rewards:
        if name in KNOWN_SCORERS and name not in scorers:
            yield Problem(
                ("rewards", name),
                f"must also stand in scorers, so that the report can compare the training reward, got {list(scorers)}",
            )


def batches_fit(train: TrainParams, prompts: PromptsParams) -> Iterator[Problem]:
    """Each update takes an equal share of an iteration's prompts, and an iteration repeats no prompt."""
    if train.prompts_per_iteration % train.updates_per_iteration:
        yield Problem(
            ("train", "prompts_per_iteration"),
            f"must be divisible by train.updates_per_iteration = {train.updates_per_iteration}, "
            f"got {train.prompts_per_iteration}",
        )
    yield from _at_most(
        ("train", "prompts_per_iteration"),
        train.prompts_per_iteration,
        "prompts.train_count",
        prompts.train_count,
    )
    yield from _unique(("train", "seeds"), train.seeds)


def heldout_prompts_exist(train: TrainParams, prompts: PromptsParams) -> Iterator[Problem]:
    """The held-out measurement draws from the eval split."""
    path = ("train", "heldout", "num_prompts")
    yield from _at_most(path, train.heldout.num_prompts, "prompts.eval_count", prompts.eval_count)


def profile_prompts_exist(profile: ProfileParams, prompts: PromptsParams) -> Iterator[Problem]:
    """The profile draws from the train split."""
    path = ("profile", "num_prompts")
    yield from _at_most(path, profile.num_prompts, "prompts.train_count", prompts.train_count)


def base_steps_fit(generate: GenerateParams) -> Iterator[Problem]:
    """The base policy takes at most all steps."""
    path = ("generate", "base_steps")
    yield from _at_most(path, generate.base_steps, "generate.num_steps", generate.num_steps)


def grid_prompts_exist(report: ReportParams, prompts: PromptsParams) -> Iterator[Problem]:
    """The grid shows eval prompts."""
    yield from _at_most(
        ("report", "grid_prompts"), report.grid_prompts, "prompts.eval_count", prompts.eval_count
    )


RULES: tuple[tuple[Rule, tuple[str, ...]], ...] = (
    (prompts_path_fits_source, ("prompts",)),
    (plans_fit_steps, ("chunks", "sampling")),
    (variant_names_are_free, ("variants",)),
    (variant_plans_exist, ("variants", "chunks")),
    (fraction_selects_a_chunk, ("variants", "chunks", "sampling", "train")),
    (scorers_are_known, ("rewards", "scorers")),
    (batches_fit, ("train", "prompts")),
    (heldout_prompts_exist, ("train", "prompts")),
    (profile_prompts_exist, ("profile", "prompts")),
    (base_steps_fit, ("generate",)),
    (grid_prompts_exist, ("report", "prompts")),
)


def broken_rules(sections: Mapping[str, Any]) -> list[Problem]:
    """The problems of all rules whose sections are there.

    Args:
        sections: section name to its validated value; a section that is invalid in itself is left out.
    """
    problems: list[Problem] = []
    for rule, needed in RULES:
        if all(name in sections for name in needed):
            problems += rule(*(sections[name] for name in needed))
    return problems


def _at_most(path: tuple[str | int, ...], value: int, other: str, limit: int) -> Iterator[Problem]:
    if value > limit:
        yield Problem(path, f"must be <= {other} = {limit}, got {value}")


def _unique(path: tuple[str | int, ...], values: tuple[object, ...]) -> Iterator[Problem]:
    for value, count in Counter(values).items():
        if count > 1:
            yield Problem(path, f"each value once, got {value!r} {count} times")


def _known(path: tuple[str | int, ...], name: str) -> Iterator[Problem]:
    if name in KNOWN_SCORERS:
        return
    if name in AWAITED_SCORERS:
        yield Problem(
            path, f"the scorer {name!r} is not part of this version yet; it has: {', '.join(KNOWN_SCORERS)}"
        )
        return
    guess = nearest(name, KNOWN_SCORERS)
    hint = f"did you mean {guess!r}? " if guess else ""
    yield Problem(path, f"unknown scorer {name!r}; {hint}known: {', '.join(KNOWN_SCORERS)}")
