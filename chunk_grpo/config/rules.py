"""Rules of params.yaml that involve more than one key.

Each rule gets the sections that its parameters name, already validated on their own.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from inspect import signature
from typing import Any, TypeAlias

from chunk_grpo.config.judges import NumberReading, VlmJudgeScorer, WiseScorer
from chunk_grpo.config.models import (
    AdaptivePlan,
    ChunksParams,
    EqualPlan,
    GenerateParams,
    GuidedPlan,
    ListedPlan,
    ModelParams,
    ProfileParams,
    ReportParams,
    SamplingParams,
)
from chunk_grpo.config.policies import AnyPolicy
from chunk_grpo.config.problems import Problem, known_name
from chunk_grpo.config.prompt_rules import PROMPT_RULES, SHAPES_EDITS
from chunk_grpo.config.prompts import PromptsParams, WisePrompts
from chunk_grpo.config.scorers import AnyExecutor, AnyScorer
from chunk_grpo.config.training import TrainParams
from chunk_grpo.config.variant_rules import RESERVED_VARIANTS, VARIANT_RULES, Variants
from chunk_grpo.core.choices import MIN_GUIDED_SIZE

Rule: TypeAlias = Callable[..., Iterator[Problem]]
Scorers: TypeAlias = Mapping[str, AnyScorer]

TOY_SIZE = 32
"""Side of the toy world's pictures, in pixels."""

JUDGED_PROMPTS: Mapping[str, tuple[str, ...]] = {
    "shapes-exact": ("shapes",),
    "shapes-graded": ("shapes",),
    "shapes-edit": ("shapes-edits",),
    "shapes-edit-graded": ("shapes-edits",),
    "geneval": ("geneval", "coco"),
    "wise": ("wise",),
    "questions": ("dpg", "file"),
}
"""Kind of scorer to the kinds of prompts that it can judge; other kinds of scorers judge any prompt."""


def plans_fit_steps(chunks: ChunksParams, sampling: SamplingParams) -> Iterator[Problem]:
    """Every plan covers the T - 1 noisy steps of a trajectory (Table 6: [2, 3, 4, 7] and T = 17)."""
    steps = sampling.num_sde_steps
    noisy = f"sampling.num_steps - 1 = {steps} (the last step carries no noise and is not trained)"
    for name, plan in chunks.plans.items():
        path = ("chunks", "plans", name)
        if isinstance(plan, ListedPlan) and sum(plan.sizes) != steps:
            yield Problem(
                (*path, "sizes"), f"must sum to {noisy}, got {list(plan.sizes)}, which sums to {sum(plan.sizes)}"
            )
        if isinstance(plan, EqualPlan) and plan.chunk_size > steps:
            yield Problem((*path, "chunk_size"), f"must be <= {noisy}, got {plan.chunk_size}")
        if isinstance(plan, AdaptivePlan) and plan.max_size > steps:
            yield Problem((*path, "max_size"), f"must be <= {noisy}, got {plan.max_size}")
        if isinstance(plan, GuidedPlan) and MIN_GUIDED_SIZE * plan.num_chunks > steps:
            most = steps // MIN_GUIDED_SIZE
            yield Problem(
                (*path, "num_chunks"),
                f"must be <= {most}: {MIN_GUIDED_SIZE} steps a chunk at least and {noisy}, got {plan.num_chunks}",
            )


def policy_names_are_free(policies: Mapping[str, AnyPolicy], variants: Variants) -> Iterator[Problem]:
    """No compared policy has the name of a variant, or a name with another meaning."""
    for name in policies:
        if name in variants or name in RESERVED_VARIANTS:
            what = "a variant" if name in variants else RESERVED_VARIANTS[name]
            yield Problem(("policies", name), f"this name means {what}; choose another")


def toy_edits_have_one_size(model: ModelParams, generate: GenerateParams, prompts: PromptsParams) -> Iterator[Problem]:
    """Edits of the toy world are judged in pixels of its pictures."""
    for section, sizes in (("model", model), ("generate", generate)):
        for side in ("height", "width"):
            if prompts.source == SHAPES_EDITS and (got := getattr(sizes, side)) != TOY_SIZE:
                yield Problem((section, side), f"must be {TOY_SIZE} with prompts.source: {SHAPES_EDITS}, got {got}")


def scorers_exist(
    scorers: Scorers, rewards: Mapping[str, float], train: TrainParams, executors: Mapping[str, AnyExecutor]
) -> Iterator[Problem]:
    """All scorer names in other sections are keys of `scorers`."""
    for name in rewards:
        yield from known_name(("rewards", name), name, "scorers", scorers)
    for name in executors:
        yield from known_name(("executors", name), name, "scorers", scorers)
    path = ("train", "heldout", "scorers")
    for position, name in enumerate(train.heldout.scorers):
        yield from known_name((*path, position), name, "scorers", scorers)
    yield from _unique(path, train.heldout.scorers)


def heldout_scorers_are_unseen(train: TrainParams, rewards: Mapping[str, float]) -> Iterator[Problem]:
    """Held-out scorers, which detect reward hacking, are not trained on."""
    path = ("train", "heldout", "scorers")
    for position, name in enumerate(train.heldout.scorers):
        if name in rewards:
            yield Problem(
                (*path, position),
                f"must not be trained on (the parts of the reward are measured anyway), got {name!r}; remove it",
            )


def scorers_have_images(scorers: Scorers, prompts: PromptsParams, rewards: Mapping[str, float]) -> Iterator[Problem]:
    """The splits of each scorer have images; reward scorers cover the eval split, which the report compares."""
    drawn = prompts.drawn_splits
    for name, settings in scorers.items():
        path = ("scorers", name, "splits")
        yield from _unique(path, settings.splits)
        for position, split in enumerate(settings.splits):
            if split not in drawn:
                yield Problem((*path, position), f"must be a split with images: {', '.join(drawn)}, got {split!r}")
        if name in rewards and "eval" not in settings.splits:
            rule = "must hold eval for a scorer that is trained on, so that the report can compare the training reward"
            yield Problem(path, f"{rule}, got {list(settings.splits)}")


def scorers_fit_the_prompts(scorers: Scorers, prompts: PromptsParams, train: TrainParams) -> Iterator[Problem]:
    """Benchmark scorers get only prompts that they can judge, in evaluation and in held-out measurements."""
    kinds: dict[str, str] = {name: benchmark.kind for name, benchmark in prompts.benchmarks.items()}
    kinds |= {"eval": prompts.source} | ({"wise": "shapes"} if prompts.wise_count else {})
    for name, settings in scorers.items():
        for position, split in enumerate(settings.splits):
            if (judged := _judged_others(settings, kinds.get(split))) is not None:
                yield Problem(
                    ("scorers", name, "splits", position),
                    f"{settings.kind} judges prompts of {judged} only, got {split!r}, whose prompts are of "
                    f"{kinds[split]}; remove the split, or the scorer",
                )
    for position, name in enumerate(train.heldout.scorers):
        if name in scorers and (judged := _judged_others(scorers[name], kinds["eval"])) is not None:
            yield Problem(
                ("train", "heldout", "scorers", position),
                f"judges prompts of {judged} only, but would score the eval split, whose prompts are of "
                f"{kinds['eval']}, got {name!r}",
            )


def _judged_others(settings: AnyScorer, prompts: str | None) -> str | None:
    """The kinds of prompts that a scorer judges, if `prompts` is not one of them."""
    judged = JUDGED_PROMPTS.get(settings.kind)
    return " or ".join(judged) if judged and prompts and prompts not in judged else None


def judges_fit_the_prompts(scorers: Scorers, prompts: PromptsParams) -> Iterator[Problem]:
    """The protocol of a WISE scorer is the version of its prompts; mixed scores would be meaningless."""
    for name, settings in scorers.items():
        if not isinstance(settings, WiseScorer):
            continue
        for split in settings.splits:
            benchmark = prompts.benchmarks.get(split)
            if isinstance(benchmark, WisePrompts) and benchmark.version != settings.protocol:
                yield Problem(
                    ("scorers", name, "protocol"),
                    f"must be prompts.benchmarks.{split}.version = {benchmark.version}, got {settings.protocol}",
                )


def judges_have_one_template_and_a_scale(scorers: Scorers) -> Iterator[Problem]:
    """The question is in params.yaml or in a file; the scale of the answers has a lower and a higher end."""
    for name, settings in scorers.items():
        if not isinstance(settings, VlmJudgeScorer):
            continue
        given = [field for field in ("template", "template_file") if getattr(settings, field) is not None]
        if len(given) != 1:
            yield Problem(
                ("scorers", name, "template"),
                "needs the question here or in template_file, and null for the other, got "
                f"{' and '.join(given) or 'null for both'}",
            )
        reading = settings.reading
        if isinstance(reading, NumberReading) and not reading.lowest < reading.highest:
            yield Problem(
                ("scorers", name, "reading", "highest"),
                f"must be above lowest = {reading.lowest:g}, got {reading.highest:g}",
            )


def trackers_are_distinct(trackers: tuple[str, ...]) -> Iterator[Problem]:
    """Each tracker is listed once; a repeated one would log every value twice."""
    yield from _unique(("trackers",), trackers)


def offloaded_parts_are_distinct(train: TrainParams) -> Iterator[Problem]:
    """Each offloaded part is listed once."""
    yield from _unique(("train", "offload"), train.offload)


def warm_up_has_an_average(train: TrainParams) -> Iterator[Problem]:
    """Only an average warms up."""
    if train.ema_warmup and train.ema_decay is None:
        yield Problem(("train", "ema_warmup"), "needs train.ema_decay, whose start it changes, got true")


def guidance_has_a_gradient(train: TrainParams, sampling: SamplingParams) -> Iterator[Problem]:
    """Only guidance has a second velocity."""
    if train.guidance_gradient != "both" and sampling.cfg_scale == 1:
        rule = "needs sampling.cfg_scale above 1, without which there is one velocity"
        yield Problem(("train", "guidance_gradient"), f"{rule}, got 'conditional'")


def quantised_bases_are_frozen(model: ModelParams, train: TrainParams) -> Iterator[Problem]:
    """Only weights that are not trained can be quantised; torch can neither compile nor shard quantised ones."""
    precision = model.base_precision
    if precision is not None:
        why = ("quantised weights cannot be trained", "which does not work with torchao's quantised weights")
        yield from _frozen_base("base_precision", repr(precision), "null", why, train)


def swapped_blocks_are_frozen(model: ModelParams, train: TrainParams) -> Iterator[Problem]:
    """Swapped weights are not trained, and their blocks are recomputed."""
    share, path = f"{model.block_swap:g}", ("model", "block_swap")
    if model.block_swap == 0:
        return
    why = ("swapped weights cannot be trained", "which places weights itself")
    yield from _frozen_base("block_swap", share, "0", why, train)
    if model.base_precision is not None:
        yield Problem(path, f"must be 0 with model.base_precision, got {share}; set one of the two")
    if train.gradient_checkpointing != 1:
        yield Problem(
            path,
            "needs train.gradient_checkpointing: true, without which the copies of all blocks wait on the GPU for the "
            f"backward pass, got {share}; set true there, or 0 here",
        )


def _frozen_base(name: str, value: str, none: str, why: tuple[str, str], train: TrainParams) -> Iterator[Problem]:
    """A setting of frozen weights has an adapter beside them, and neither compiled nor sharded blocks."""
    path, (untrained, refused) = ("model", name), why
    if train.lora is None:
        yield Problem(
            path,
            f"needs train.lora, since {untrained}, got {value} with train.lora: null; set train.lora, or {none} here",
        )
    for other in ("compile", "shard_weights"):
        if getattr(train, other) is True:
            yield Problem(
                path,
                f"must be {none} with train.{other}: true, {refused}, got {value}; set train.{other}: false, or {none} "
                "here",
            )


def batches_fit(train: TrainParams, prompts: PromptsParams) -> Iterator[Problem]:
    """Updates get equal shares of an iteration's prompts; an iteration has no prompt twice; seeds differ."""
    path, drawn = ("train", "prompts_per_iteration"), train.prompts_per_iteration
    if drawn % train.updates_per_iteration:
        rule = f"must be divisible by train.updates_per_iteration = {train.updates_per_iteration}"
        yield Problem(path, f"{rule}, got {drawn}")
    yield from _at_most(path, drawn, "prompts.train_count", prompts.train_count)
    yield from _unique(("train", "seeds"), train.seeds)


def heldout_prompts_exist(train: TrainParams, prompts: PromptsParams) -> Iterator[Problem]:
    """The held-out measurement uses at most all eval prompts."""
    path = ("train", "heldout", "num_prompts")
    yield from _at_most(path, train.heldout.num_prompts, "prompts.eval_count", prompts.eval_count)


def profile_prompts_exist(profile: ProfileParams, prompts: PromptsParams) -> Iterator[Problem]:
    """The profile uses at most all train prompts."""
    path = ("profile", "num_prompts")
    yield from _at_most(path, profile.num_prompts, "prompts.train_count", prompts.train_count)


def profile_seeds_fit(profile: ProfileParams) -> Iterator[Problem]:
    """All noise seeds, consecutive from the first, fit into int64."""
    path = ("profile", "seed")
    yield from _at_most(path, profile.seed, "2**63 - profile.num_seeds", 2**63 - profile.num_seeds)


def base_steps_fit(generate: GenerateParams) -> Iterator[Problem]:
    """The base policy takes at most all steps."""
    path = ("generate", "base_steps")
    yield from _at_most(path, generate.base_steps, "generate.num_steps", generate.num_steps)


def grid_prompts_exist(report: ReportParams, prompts: PromptsParams) -> Iterator[Problem]:
    """The grid shows at most all eval prompts."""
    yield from _at_most(("report", "grid_prompts"), report.grid_prompts, "prompts.eval_count", prompts.eval_count)


RULES: Mapping[Rule, tuple[str, ...]] = {
    rule: tuple(signature(rule).parameters)
    for rule in (
        *PROMPT_RULES,
        toy_edits_have_one_size,
        plans_fit_steps,
        *VARIANT_RULES,
        policy_names_are_free,
        scorers_exist,
        heldout_scorers_are_unseen,
        scorers_fit_the_prompts,  # first: other problems may follow from it
        scorers_have_images,
        judges_fit_the_prompts,
        judges_have_one_template_and_a_scale,
        trackers_are_distinct,
        offloaded_parts_are_distinct,
        warm_up_has_an_average,
        guidance_has_a_gradient,
        quantised_bases_are_frozen,
        swapped_blocks_are_frozen,
        batches_fit,
        heldout_prompts_exist,
        profile_prompts_exist,
        profile_seeds_fit,
        base_steps_fit,
        grid_prompts_exist,
    )
}
"""Each rule with the sections that it needs."""


def broken_rules(sections: Mapping[str, Any]) -> list[Problem]:
    """Problems of all rules whose sections are valid; `sections` has no others."""
    problems: list[Problem] = []
    for rule, needed in RULES.items():
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
