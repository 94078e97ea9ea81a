"""Rules for the settings of a variant, among each other and with the rest of params.yaml.

Meaningless combinations are rejected before any work starts.
"""

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from chunk_grpo.config.models import (
    AdaptivePlan,
    ChunksParams,
    GuidedPlan,
    PlanParams,
    SamplingParams,
    StepPlan,
    chunk_count,
)
from chunk_grpo.config.problems import Problem, known_name, show
from chunk_grpo.config.resolved import resolve
from chunk_grpo.config.training import TrainParams
from chunk_grpo.config.variants import VariantParams, WindowParams

Variants: TypeAlias = Mapping[str, VariantParams]

RESERVED_VARIANTS = {
    "base": "the untrained policy",
    **dict.fromkeys(("prompts", "captions", "train_seeds", "answer"), "a key of the report's summary.json"),
}
"""Names that no trained or compared policy may have, and what each means."""


def variant_names_are_free(variants: Variants) -> Iterator[Problem]:
    """No variant has a name with another meaning."""
    for name in variants:
        if name in RESERVED_VARIANTS:
            yield Problem(("variants", name), f"this name means {RESERVED_VARIANTS[name]}; choose another")


def variant_plans_exist(variants: Variants, chunks: ChunksParams) -> Iterator[Problem]:
    """The plan of each variant is in chunks.plans."""
    for name, variant in variants.items():
        yield from known_name(("variants", name, "plan"), variant.plan, "chunks.plans", chunks.plans)


def step_weights_fit_the_objective(variants: Variants, chunks: ChunksParams) -> Iterator[Problem]:
    """Step weights need the step objective; weights by chunk size need a plan with chunks of several steps."""
    for name, variant, plan in _planned(variants, chunks):
        if variant.objective == "chunk" and variant.step_weights != "uniform":
            yield _problem(name, "step_weights", "needs objective: step, whose terms it weighs", variant.step_weights)
        elif variant.step_weights == "chunk-size" and isinstance(plan, StepPlan):
            yield Problem(
                ("variants", name, "plan"),
                f"step_weights: chunk-size needs the chunks that set the weights, got {variant.plan!r} ({plan.kind})",
            )


def fixed_plans_where_needed(variants: Variants, chunks: ChunksParams, sampling: SamplingParams) -> Iterator[Problem]:
    """Settings per chunk need a known K: the same plan for all trajectories, with noise in all steps."""
    for name, variant, plan in _planned(variants, chunks):
        reason = None
        if isinstance(plan, AdaptivePlan):
            reason = f"a plan for all trajectories; {variant.plan!r} is adaptive"
        elif variant.window or variant.branching:
            reason = "noise in all steps; with a window or branching most steps have none"
        count = chunk_count(plan, sampling.num_sde_steps)
        for key in ("selection", "train_chunks", "clip_ranges", "chunk_rewards", "credit"):
            value = getattr(variant, key)
            if value in (None, "uniform", "image"):
                continue
            if reason:
                yield _problem(name, key, f"needs {reason}", value)
            elif key in ("clip_ranges", "chunk_rewards") and len(value) != count:
                rule = f"must have one entry for each of the {count} chunks of {variant.plan!r}"
                yield _problem(name, key, rule, value)
            elif key == "train_chunks" and (len(set(value)) < len(value) or max(value) >= count):
                yield _problem(name, key, f"must be numbers from 0 to {count - 1}, each once", value)


def per_chunk_settings_fit_the_objective(variants: Variants, chunks: ChunksParams) -> Iterator[Problem]:
    """clip_range excludes clip_ranges; per-chunk clip ranges, rewards and gains need one ratio per chunk."""
    for name, variant, plan in _planned(variants, chunks):
        if variant.clip_ranges is not None and variant.clip_range is not None:
            yield _problem(name, "clip_ranges", "replaces clip_range; set only one of the two", variant.clip_ranges)
        for key in ("clip_ranges", "chunk_rewards", "credit"):
            value = getattr(variant, key)
            if value in (None, "image"):
                continue
            if variant.objective == "step" and not isinstance(plan, StepPlan):
                rule = "needs objective: chunk, which has one ratio per chunk of the plan"
                yield _problem(name, key, rule, value)


def gains_fit_the_rest(variants: Variants) -> Iterator[Problem]:
    """Gains are of one reward, of chunks that are known before the rollout, and of the states that are trained."""
    needed = {"combine": "rewards", "chunk_rewards": None, "replan_every": None, "likelihood": "transition"}
    for name, variant in variants.items():
        for key, value in needed.items() if variant.credit == "chunk-gains" else ():
            if (got := getattr(variant, key)) != value:
                yield _problem(name, key, f"must be {show(value)} with credit: chunk-gains", got)


def exponents_have_weights(variants: Variants) -> Iterator[Problem]:
    """Only a weighted draw has an exponent."""
    for name, variant in variants.items():
        if variant.selection == "uniform" and variant.selection_exponent != 1:
            rule = "needs a weighted selection, such as selection: weighted"
            yield _problem(name, "selection_exponent", rule, variant.selection_exponent)


def replanning_has_a_rule(variants: Variants, chunks: ChunksParams) -> Iterator[Problem]:
    """Only guided plans are computed from a profile."""
    for name, variant, plan in _planned(variants, chunks):
        if variant.replan_every is not None and not isinstance(plan, GuidedPlan):
            rule = f"needs a plan of kind: guided, which follows the profile; {variant.plan!r} is {plan.kind}"
            yield _problem(name, "replan_every", rule, variant.replan_every)


def windows_fit_the_grid(variants: Variants, chunks: ChunksParams, sampling: SamplingParams) -> Iterator[Problem]:
    """A window is within the noisy steps, moves or is drawn, and needs the step objective and a step plan."""
    steps = sampling.num_sde_steps
    for name, variant, plan in _planned(variants, chunks):
        window = variant.window
        if window is None:
            continue
        if window.num_steps > steps:
            rule = f"must be <= sampling.num_steps - 1 = {steps} (the last step carries no noise)"
            yield Problem(("variants", name, "window", "num_steps"), f"{rule}, got {window.num_steps}")
        if window.stride > window.num_steps:
            rule = f"must be <= num_steps = {window.num_steps}, or steps between two windows are never trained"
            yield Problem(("variants", name, "window", "stride"), f"{rule}, got {window.stride}")
        yield from _starts_fit(name, window, steps)
        yield from _single_steps(name, "window", variant, plan)


def _starts_fit(name: str, window: WindowParams, steps: int) -> Iterator[Problem]:
    if (starts := window.starts) is None:
        return
    last = steps - window.num_steps
    if len(set(starts)) < len(starts) or max(starts) > last >= 0:
        rule = f"must be steps from 0 to {last}, each once, so that the window ends within {steps} noisy steps"
        yield Problem(("variants", name, "window", "starts"), f"{rule}, got {show(starts)}")
    for key in ("stride", "every"):
        if (value := getattr(window, key)) != 1:
            rule = "moves the window, and starts has it drawn in each iteration; remove one of the two"
            yield Problem(("variants", name, "window", key), f"{rule}, got {value}")


def branches_fit_the_group(
    variants: Variants, chunks: ChunksParams, sampling: SamplingParams, train: TrainParams
) -> Iterator[Problem]:
    """TempFlow-GRPO: `children` divides the group size; each branch trains its one noisy step."""
    for name, variant, plan in _planned(variants, chunks):
        branching = variant.branching
        if branching is None:
            continue
        path = ("variants", name, "branching")
        if branching.points > sampling.num_sde_steps:
            rule = f"must be <= sampling.num_steps - 1 = {sampling.num_sde_steps} (the last step carries no noise)"
            yield Problem((*path, "points"), f"{rule}, got {branching.points}")
        if train.group_size % branching.children:
            rule = f"must divide train.group_size = {train.group_size}"
            yield Problem((*path, "children"), f"{rule}, got {branching.children}")
        if variant.window is not None:
            yield Problem(path, "cannot be combined with window: a branch has one noisy step; remove one of them")
        yield from _single_steps(name, "branching", variant, plan)


def _single_steps(name: str, key: str, variant: VariantParams, plan: PlanParams) -> Iterator[Problem]:
    if variant.objective != "step" or not isinstance(plan, StepPlan):
        yield Problem(
            ("variants", name, key),
            "needs objective: step and a plan of kind: step, "
            f"got {variant.objective} and {variant.plan!r} ({plan.kind})",
        )


def fraction_selects_a_chunk(
    variants: Variants, chunks: ChunksParams, sampling: SamplingParams, train: TrainParams
) -> Iterator[Problem]:
    """At least one chunk is trained: int(K * fraction) >= 1, rounded down as in the released code."""
    for name, variant, plan in _planned(variants, chunks):
        own = variant.fraction is not None
        fraction = resolve(variant, sampling, train).fraction
        count, among = _candidates(variant, plan, sampling.num_sde_steps)
        if int(count * fraction) < 1:
            remedy = "raise it" if own else f"raise train.fraction, or set variants.{name}.fraction"
            yield Problem(
                ("variants", name, "fraction"),
                f"int(chunks * fraction) must be >= 1, got int({count} * {fraction}) = 0 with {among}; {remedy}",
            )


def selection_has_a_choice(
    variants: Variants, chunks: ChunksParams, sampling: SamplingParams, train: TrainParams
) -> Iterator[Problem]:
    """Non-uniform selection needs unselected chunks, unless K > 1 and the shared train.fraction selects all chunks."""
    for name, variant, plan in _planned(variants, chunks):
        if variant.selection == "uniform":
            continue
        count, among = _candidates(variant, plan, sampling.num_sde_steps)
        fraction = resolve(variant, sampling, train).fraction
        if int(count * fraction) == count and (count == 1 or variant.fraction is not None):
            rule = f"must be uniform where every chunk is trained: int({count} * {fraction:g}) = {count} with {among}"
            yield _problem(name, "selection", rule, variant.selection)


def _candidates(variant: VariantParams, plan: PlanParams, num_sde_steps: int) -> tuple[int, str]:
    """Smallest number of chunks to which the fraction applies, and the setting that determines it."""
    if variant.branching is not None:
        return 1, "branching (each image trains the step it branched at)"
    if variant.window is not None:
        return variant.window.num_steps, "window.num_steps"
    if variant.train_chunks is not None:
        return len(variant.train_chunks), "train_chunks"
    return chunk_count(plan, num_sde_steps), f"plan {variant.plan!r}"


def noise_is_possible(variants: Variants, sampling: SamplingParams) -> Iterator[Problem]:
    """With CPS steps eta <= 1, because eta is the share of the noise that is replaced."""
    if sampling.sde == "cps" and sampling.eta > 1:
        yield Problem(("sampling", "eta"), f"must be <= 1 with sde: cps, got {sampling.eta}")
    for name, variant in variants.items():
        eta = sampling.eta if variant.eta is None else variant.eta
        is_own = variant.sde is not None or variant.eta is not None
        if is_own and (variant.sde or sampling.sde) == "cps" and eta > 1:
            yield Problem(("variants", name, "eta"), f"must be <= 1 with sde: cps, got {eta}")


def steps_without_noise_have_no_density(
    variants: Variants, sampling: SamplingParams, train: TrainParams
) -> Iterator[Problem]:
    """With `sde: ode` a variant learns from final images, which differ by their start alone; the profile has noise."""
    if sampling.sde == "ode":
        rule = "must have noise, with which the profile of Eq. (15) is measured; set sde: ode in variants"
        yield Problem(("sampling", "sde"), f"{rule}, got 'ode'")
    for name, variant in variants.items():
        if variant.sde != "ode":
            if variant.solver != "euler":
                yield _problem(name, "solver", "needs sde: ode, in all steps", variant.solver)
            continue
        if train.same_noise_in_group:
            rule = "needs train.same_noise_in_group: false, or the images of a group are one and the same"
            yield _problem(name, "sde", rule, variant.sde)
        if variant.likelihood == "transition":
            rule = "must be matching or nft with sde: ode, whose steps have no density"
            yield _problem(name, "likelihood", rule, variant.likelihood)
        if variant.eta is not None:
            yield _problem(name, "eta", "needs noise, and sde is ode; leave it out", variant.eta)
        if variant.step_weights == "noise":
            yield _problem(name, "step_weights", "needs noise, and sde is ode", variant.step_weights)
        if variant.window is not None:
            yield Problem(("variants", name, "window"), "needs noise, and sde is ode; remove one of them")


def variant_rewards_are_trained_on(variants: Variants, rewards: Mapping[str, float]) -> Iterator[Problem]:
    """Each mix of chunk_rewards names entries of `rewards`; another `combine` than rewards needs several."""
    for name, variant in variants.items():
        mixes: tuple[Mapping[str, float], ...] = variant.chunk_rewards or (rewards,)
        if variant.combine != "rewards" and all(len(mix) < 2 for mix in mixes):
            there = "each chunk has only one" if variant.chunk_rewards else f"there is only {', '.join(rewards)}"
            yield _problem(name, "combine", f"needs several rewards, and {there}", variant.combine)
        for chunk, mix in enumerate(variant.chunk_rewards or ()):
            path = ("variants", name, "chunk_rewards", chunk)
            if not mix:
                yield Problem(path, "must name at least one reward, got none")
            for reward in mix:
                yield from known_name((*path, reward), reward, "rewards", rewards)


def forward_processes_need_no_transitions(variants: Variants) -> Iterator[Problem]:
    """AWM and DiffusionNFT learn from final images: nothing of the sampled transitions can bound or normalise them."""
    for name, variant in variants.items():
        if variant.likelihood != "nft" and variant.nft_beta != VariantParams.model_fields["nft_beta"].default:
            yield _problem(name, "nft_beta", "needs likelihood: nft", variant.nft_beta)
        if variant.likelihood == "transition":
            for key, usual in (("forward_noise", "image"), ("forward_times", "grid")):
                if (value := getattr(variant, key)) != usual:
                    rule = "needs likelihood: matching or nft, whose images are noised again"
                    yield _problem(name, key, rule, value)
            continue
        for key, usual in (("ratio_norm", "none"), ("trust_region", "clip")):
            if (value := getattr(variant, key)) != usual:
                yield _problem(name, key, "needs likelihood: transition", value)
        if variant.branching is not None:
            yield Problem(
                ("variants", name, "branching"),
                "needs likelihood: transition, whose step a branch trains; remove one of them",
            )
        if variant.likelihood == "nft" and variant.chunk_rewards is not None:
            yield _problem(name, "chunk_rewards", "needs a likelihood with ratios, not nft", variant.chunk_rewards)


def slow_sampling_has_no_ratio(variants: Variants) -> Iterator[Problem]:
    """A ratio needs the policy before the update, so only DiffusionNFT, which has none, samples from another."""
    for name, variant in variants.items():
        if variant.sampling_average is not None and variant.likelihood != "nft":
            yield _problem(name, "sampling_average", "needs likelihood: nft, which has no ratio", variant.likelihood)


def controllers_have_settings(variants: Variants, train: TrainParams) -> Iterator[Problem]:
    """A controlled variant needs the controller's settings and a score that is not trained on; it keeps its best state.

    That state is a copy in the memory of each process, which sharded weights are made to avoid.
    """
    for name, variant in variants.items():
        if not variant.controlled:
            continue
        lacking = {
            "train.heldout.controller": train.heldout.controller is None,
            "a scorer in train.heldout.scorers": not train.heldout.scorers,
            "train.shard_weights: false": train.shard_weights,
        }
        for what in (what for what, lacks in lacking.items() if lacks):
            yield _problem(name, "controlled", f"needs {what}", variant.controlled)


VARIANT_RULES = (
    variant_names_are_free,
    variant_plans_exist,
    step_weights_fit_the_objective,
    fixed_plans_where_needed,
    per_chunk_settings_fit_the_objective,
    gains_fit_the_rest,
    replanning_has_a_rule,
    exponents_have_weights,
    windows_fit_the_grid,
    branches_fit_the_group,
    fraction_selects_a_chunk,
    selection_has_a_choice,
    noise_is_possible,
    steps_without_noise_have_no_density,
    controllers_have_settings,
    slow_sampling_has_no_ratio,
    forward_processes_need_no_transitions,
    variant_rewards_are_trained_on,
)


def _planned(variants: Variants, chunks: ChunksParams) -> Iterator[tuple[str, VariantParams, PlanParams]]:
    """Name, variant and plan of each variant whose plan exists."""
    for name, variant in variants.items():
        plan = chunks.plans.get(variant.plan)
        if plan is not None:
            yield name, variant, plan


def _problem(name: str, key: str, rule: str, value: object) -> Problem:
    return Problem(("variants", name, key), f"{rule}, got {show(value)}")
