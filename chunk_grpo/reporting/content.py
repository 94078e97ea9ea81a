"""Everything the report says, before any mark-up: sentences, tables, curves and images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chunk_grpo.artifacts import RunManifest
from chunk_grpo.errors import DataError
from chunk_grpo.reporting import gallery, series, tables, watching
from chunk_grpo.reporting.benchmarks import (
    EVAL,
    CategoryTable,
    SplitTable,
    benchmarks_run,
    category_tables,
    left_out_sentences,
    scorers_table,
    split_tables,
)
from chunk_grpo.reporting.comparisons import (
    Comparison,
    Comparisons,
    PairComparison,
    effects_text,
    headline,
    order_sentence,
)
from chunk_grpo.reporting.evidence import (
    MODES,
    REWARD,
    Evidence,
    PromptSet,
    ReportSettings,
    ScoreBook,
    Source,
    TrainingSettings,
)
from chunk_grpo.reporting.gallery import Grid
from chunk_grpo.reporting.published import Benchmark, benchmarks_not_run
from chunk_grpo.reporting.series import Chunk, Curve
from chunk_grpo.reporting.statistics import METHOD, Interval
from chunk_grpo.reporting.tables import Table
from chunk_grpo.reporting.trained import (
    ChunkUse,
    PlanMoment,
    Trained,
    chunk_uses,
    plan_moments,
    trained_in_numbers,
)
from chunk_grpo.reporting.watching import Ending

PAPER_SCORERS = {"hpsv3": "HPSv3", "imagereward": "ImageReward", "pickscore": "PickScore"}
FEW_SCORERS = 2
"""Outside the reward; of more of them those on which no difference is shown share a sentence."""

REWARD_METRICS = {
    "heldout_reward": "training reward, held-out prompts, fixed noise",
    "reward_mean": "training reward, prompts of the iteration",
}


@dataclass(frozen=True)
class Profile:
    """The relative L1 profile with the chunks drawn over it."""

    sde: Curve
    ode: Curve
    noise_levels: dict[int, float]
    shown: tuple[Chunk, ...]
    guided: tuple[Chunk, ...] | None


@dataclass(frozen=True)
class TrainingStory:
    """What the metrics tell of training beside the curves that every run has.

    Attributes:
        watched: Metric to variant to curve, for what tells whether the reward is hacked; may lack any.
        trained: How the variants trained, in numbers.
        uses: Variant to its chunks' draws; empty where they were not recorded.
        moments: Variant to its plan over the run, for plans that follow the policy.
        endings: Where runs ended, if not all at the last iteration.
    """

    watched: dict[str, dict[str, Curve]]
    trained: tuple[Trained, ...]
    uses: dict[str, tuple[ChunkUse, ...]]
    moments: dict[str, tuple[PlanMoment, ...]]
    endings: tuple[Ending, ...]


@dataclass(frozen=True)
class Content:
    """What templates and plots take.

    Attributes:
        settings: The values of params.yaml.
        answer: Does it help? In a few words.
        sentence: The same with the numbers.
        remarks: Further sentences: hybrid, scorers outside the reward, variants against each other.
        method: How the intervals were made.
        comparisons: Every variant, mode and measure, in the tables' order.
        base: Mean of the base on every measure.
        grids: The image grid, in parts where there are many variants.
        profile: The L1 profile.
        rewards: Metric to variant to curve, for `REWARD_METRICS`.
        training: Metric to variant to curve, for ratios, clipping and gradients.
        story: What else is known of training.
        preference: Our table in the form of the paper's Table 1.
        pairs: Variants against each other.
        categories: Scorers by category.
        others: Scores of other prompts than those of the eval split that are not among `categories`.
        scorers: What each scorer is.
        shown_chunks: Chunks of the plan in use.
        guided_chunks: Chunks of the guided plan.
        runs: What ran.
        total_seconds: Sum over the stages.
        machine: Facts of the environment, (name, value).
        not_run: What the report does not hold.
    """

    settings: ReportSettings
    answer: str
    sentence: str
    remarks: tuple[str, ...]
    method: str
    comparisons: tuple[Comparison, ...]
    base: dict[str, Interval]
    grids: tuple[Grid, ...]
    profile: Profile
    rewards: dict[str, dict[str, Curve]]
    training: dict[str, dict[str, Curve]]
    story: TrainingStory
    preference: Table
    pairs: tuple[PairComparison, ...]
    categories: tuple[CategoryTable, ...]
    others: tuple[SplitTable, ...]
    scorers: Table
    shown_chunks: Table
    guided_chunks: Table | None
    runs: Table
    total_seconds: float
    machine: tuple[tuple[str, str], ...]
    not_run: tuple[str, ...]


def collect(evidence: Evidence, settings: ReportSettings) -> Content:
    """Work out everything that the report says.

    Raises:
        DataError: a table, a policy, a prompt, a seed, a metric or an image is missing; the message names
        file and key.
    """
    book = ScoreBook(evidence.scores, settings.rewards)
    prompts = _held_out(book, evidence.prompts, settings.scorers[0])
    main = Comparisons(book, prompts, settings)
    measures = (REWARD, *settings.scorers)
    found = tuple(
        main.against_base(v, mode, m) for m in measures for v in settings.variants for mode in MODES
    )
    answer, sentence = headline([c for c in found if (c.mode, c.measure) == ("tuned", REWARD)])
    pairs = main.between_variants()
    categories = tuple(category_tables(book, evidence, settings))
    others = tuple(split_tables(book, evidence, settings, categories))
    profile = _profile(evidence, settings)
    return Content(
        settings=settings,
        answer=answer,
        sentence=sentence,
        remarks=(
            *_remarks(found, settings, order_sentence(pairs)),
            *left_out_sentences(book, evidence, settings),
        ),
        method=METHOD.format(draws=settings.bootstrap_samples),
        comparisons=found,
        base={m: main.base_mean(m) for m in measures},
        grids=_grids(evidence, settings, prompts, book),
        profile=profile,
        rewards={m: _curves(evidence, settings, m) for m in REWARD_METRICS},
        training={
            "max_ratio_distance": {v: series.ratio_curve(evidence.metrics[v]) for v in settings.variants},
            "clip_fraction": _curves(evidence, settings, "clip_fraction"),
            "grad_norm": _curves(evidence, settings, "grad_norm"),
        },
        story=_story(evidence, settings),
        preference=tables.policy_table(main, settings.variants, measures),
        pairs=tuple(pairs),
        categories=categories,
        others=others,
        scorers=scorers_table(evidence, settings),
        shown_chunks=tables.chunk_table(profile.shown),
        guided_chunks=tables.chunk_table(profile.guided) if profile.guided else None,
        runs=tables.runs_table(evidence.runs),
        total_seconds=sum(run.seconds for run in evidence.runs),
        machine=_machine(evidence.runs),
        not_run=_not_run(settings, benchmarks_run(book, evidence, settings), categories, others),
    )


def _story(evidence: Evidence, settings: ReportSettings) -> TrainingStory:
    metrics, training = evidence.metrics, settings.training
    return TrainingStory(
        watched=watching.watched_curves(metrics, training),
        trained=trained_in_numbers(metrics, training, evidence.runs),
        uses={variant: chunk_uses(source) for variant, source in metrics.items()},
        moments={variant: plan_moments(source) for variant, source in metrics.items()},
        endings=watching.endings(metrics, training),
    )


def _held_out(book: ScoreBook, source: Source, scorer: str) -> PromptSet:
    prompts = book.prompt_set(source, EVAL, scorer)
    if prompts is None:
        raise DataError(
            f"{source.path}: no prompt with split=eval was scored for the base; the report "
            "compares policies on these prompts: run the generate and score stages again"
        )
    return prompts


def _curves(evidence: Evidence, settings: ReportSettings, metric: str) -> dict[str, Curve]:
    return {v: series.metric_curve(evidence.metrics[v], metric) for v in settings.variants}


def _profile(evidence: Evidence, settings: ReportSettings) -> Profile:
    guided = settings.guided_plan
    return Profile(
        sde=series.profile_curve(evidence.profile, "sde"),
        ode=series.profile_curve(evidence.profile, "ode"),
        noise_levels=series.noise_levels(evidence.profile),
        shown=series.chunks_of(evidence.plans[settings.shown_plan]),
        guided=None if guided is None else series.chunks_of(evidence.plans[guided]),
    )


def _grids(
    evidence: Evidence, settings: ReportSettings, prompts: PromptSet, book: ScoreBook
) -> tuple[Grid, ...]:
    table = evidence.prompts.table
    texts = dict(zip(table["prompt_id"].to_pylist(), table["prompt"].to_pylist(), strict=True))
    chosen = gallery.choose_prompts(prompts, settings.grid_prompts, settings.seed)
    grids = []
    for variants in gallery.grid_variants(settings.variants):
        columns = gallery.grid_columns(variants)
        rows = gallery.grid_rows(chosen, columns, evidence.images, texts, book, settings.scorers)
        grids.append(Grid(variants, columns, tuple(rows)))
    return tuple(grids)


def _remarks(found: Sequence[Comparison], settings: ReportSettings, order: str) -> tuple[str, ...]:
    def sentence(start: str, mode: str, measure: str) -> str:
        return f"{start}: {effects_text([c for c in found if (c.mode, c.measure) == (mode, measure)])}."

    hybrid = f"Hybrid inference (the last {settings.base_steps} of {settings.num_steps} steps by the base)"
    outside = [scorer for scorer in settings.scorers if scorer not in settings.rewards]
    quiet = _quiet(found, outside) if len(outside) > FEW_SCORERS else []
    told = [
        sentence(f"{scorer}, which the reward does not hold, tuned against base", "tuned", scorer)
        for scorer in outside
        if scorer not in quiet
    ]
    if quiet:
        start = "Scorers that the reward does not hold and on which no variant, tuned, is shown to differ from the base"
        told.append(f"{start}: {', '.join(quiet)}.")
    return (sentence(f"{hybrid}, training reward", "hybrid", REWARD), *told, *([order] if order else []))


def _quiet(found: Sequence[Comparison], scorers: Sequence[str]) -> list[str]:
    """The scorers that show no difference for any tuned variant."""
    moved = {c.measure for c in found if c.mode == "tuned" and c.difference.verdict != "none"}
    return [scorer for scorer in scorers if scorer not in moved]


def _machine(runs: Sequence[RunManifest]) -> tuple[tuple[str, str], ...]:
    """Facts that the runs agree on, or each value once."""

    def values(found: Sequence[str | None]) -> str:
        return ", ".join(dict.fromkeys(value for value in found if value)) or "not recorded"

    packages = sorted({f"{name} {version}" for run in runs for name, version in run.packages.items()})
    return (
        ("commit", values([run.commit for run in runs])),
        ("machine", values([f"{run.cpu}, {run.cpu_count} cores" for run in runs])),
        (
            "accelerator",
            values([run.accelerator for run in runs]) if any(r.accelerator for r in runs) else "none",
        ),
        ("system", values([run.system for run in runs])),
        ("Python", values([run.python for run in runs])),
        ("packages", values(packages)),
    )


def _not_run(
    settings: ReportSettings,
    benchmarks: Sequence[Benchmark],
    categories: Sequence[CategoryTable],
    others: Sequence[SplitTable],
) -> tuple[str, ...]:
    found, kinds = [], {use.kind for use in settings.measured}
    missing = [name for kind, name in PAPER_SCORERS.items() if kind not in kinds]
    if missing:
        found.append(f"The paper’s reward models: {', '.join(missing)}.")
    found.extend(filter(None, [benchmarks_not_run(benchmarks)]))
    if not categories:
        found.append("A score by category: no scorer that counts right prompts, or one category only.")
    if not others and all(table.split == EVAL for table in categories):
        found.append("Prompts of other splits than eval: none was scored.")
    if settings.other_plans:
        found.append(f"Training with the chunk plans {', '.join(settings.other_plans)}.")
    found.extend(not_trained(settings.training))
    return tuple(found)


def not_trained(training: TrainingSettings) -> list[str]:
    """What of the paper's studies no variant trains."""
    single, other = "single chunks (the paper’s Fig. 6)", "other rewards ({} Table 4)"
    if not training.single_chunks and not training.chunk_rewards:
        return [f"Training {single} and {other.format('its')}."]
    if not training.single_chunks:
        return [f"Training {single}."]
    return [] if training.chunk_rewards else [f"Training with {other.format('the paper’s')}."]
