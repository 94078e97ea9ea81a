"""Content of the report without mark-up: sentences, tables, curves and images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chunk_grpo.artifacts import RunManifest
from chunk_grpo.errors import DataError
from chunk_grpo.reporting import gallery, reward_hacking, series, tables
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
    headline,
    order_sentence,
    verdicts_text,
)
from chunk_grpo.reporting.evidence import (
    MODES,
    REWARD,
    Evidence,
    ReportSettings,
    ScoreBook,
    ScoredPrompts,
    Source,
    TrainingSettings,
)
from chunk_grpo.reporting.gallery import Grid
from chunk_grpo.reporting.official_benchmarks import Benchmark, benchmarks_not_run
from chunk_grpo.reporting.reward_hacking import Ending
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

PAPER_SCORERS = {"hpsv3": "HPSv3", "imagereward": "ImageReward", "pickscore": "PickScore"}
FEW_SCORERS = 2
"""With more scorers outside the reward than this, those without a shown difference share one sentence."""

REWARD_METRICS = {
    "heldout_reward": "training reward on held-out prompts, fixed noise",
    "reward_mean": "training reward on the iteration’s prompts",
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
    """Training metrics other than the curves that every run has.

    Attributes:
        watched: Metric to variant to curve, for the metrics that can reveal reward hacking; may be empty.
        hacking: Answer to "Is the reward being hacked?"; empty without such metrics.
        trained: Training statistics of each variant.
        uses: Variant to the draws of its chunks; empty if they were not recorded.
        moments: Variant to its plan at some iterations, for plans that are recomputed during training.
        endings: Last and best iterations of the runs; see `reward_hacking.endings`.
    """

    watched: dict[str, dict[str, Curve]]
    hacking: str
    trained: tuple[Trained, ...]
    uses: dict[str, tuple[ChunkUse, ...]]
    moments: dict[str, tuple[PlanMoment, ...]]
    endings: tuple[Ending, ...]


@dataclass(frozen=True)
class Content:
    """Input of the templates and plots.

    Attributes:
        settings: The values of params.yaml.
        answer: Short answer to "Does it help?".
        sentence: The answer with its numbers.
        remarks: Further sentences: hybrid inference, scorers outside the reward, pairs of variants.
        method: Description of the intervals.
        comparisons: Comparison with the base of every variant, mode and measure, in the order of the tables.
        base: Measure to the mean of the base.
        grids: Parts of the image grid; one part unless there are many variants.
        profile: The L1 profile.
        rewards: Metric to variant to curve, for `REWARD_METRICS`.
        training: Metric to variant to curve, for ratios, clipping and gradients.
        story: Further training metrics.
        preference: Table of means and differences in the layout of the paper's Table 1.
        pairs: Comparisons between variants.
        categories: Tables of scores by category.
        others: Scores on splits other than eval that are not in `categories`.
        scorers: Table that describes each scorer.
        shown_chunks: Chunks of the plan in use.
        guided_chunks: Chunks of the guided plan.
        runs: Table of the stages that ran.
        total_seconds: Wall time, summed over the stages.
        machine: Facts of the environment, (name, value).
        not_run: Experiments of the paper that this run lacks, one sentence each.
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
    """Compute the content of the report.

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
    watched = reward_hacking.watched_curves(metrics, training)
    rewards = {
        variant: series.metric_curve(metrics[variant], "heldout_reward") for variant in settings.variants
    }
    return TrainingStory(
        watched=watched,
        hacking=reward_hacking.conclusion(rewards, watched, training),
        trained=trained_in_numbers(metrics, training, evidence.runs),
        uses={variant: chunk_uses(source) for variant, source in metrics.items()},
        moments={variant: plan_moments(source) for variant, source in metrics.items()},
        endings=reward_hacking.endings(metrics, training),
    )


def _held_out(book: ScoreBook, source: Source, scorer: str) -> ScoredPrompts:
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
    evidence: Evidence, settings: ReportSettings, prompts: ScoredPrompts, book: ScoreBook
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
        return f"{start}: {verdicts_text([c for c in found if (c.mode, c.measure) == (mode, measure)])}."

    hybrid = f"Hybrid inference (the base model takes the last {settings.base_steps} of {settings.num_steps} steps)"
    outside = [scorer for scorer in settings.scorers if scorer not in settings.rewards]
    quiet = _quiet(found, outside) if len(outside) > FEW_SCORERS else []
    of_scorers = [
        sentence(f"{scorer}, which is not part of the reward, tuned against base", "tuned", scorer)
        for scorer in outside
        if scorer not in quiet
    ]
    if quiet:
        start = "Scorers that are not part of the reward and show no difference between any tuned variant and the base"
        of_scorers.append(f"{start}: {', '.join(quiet)}.")
    return (
        sentence(f"{hybrid}, training reward", "hybrid", REWARD),
        *of_scorers,
        *([order] if order else []),
    )


def _quiet(found: Sequence[Comparison], scorers: Sequence[str]) -> list[str]:
    """Scorers that show no difference for any tuned variant."""
    moved = {c.measure for c in found if c.mode == "tuned" and c.difference.verdict != "none"}
    return [scorer for scorer in scorers if scorer not in moved]


def _machine(runs: Sequence[RunManifest]) -> tuple[tuple[str, str], ...]:
    """Environment of the runs: each distinct value once."""

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
        found.append(
            "Scores by category: no scorer judges images as right or wrong, or all prompts are of one category."
        )
    if not others and all(table.split == EVAL for table in categories):
        found.append("Splits other than eval: none was scored.")
    if settings.other_plans:
        found.append(f"Training with the chunk plans {', '.join(settings.other_plans)}.")
    found.extend(not_trained(settings.training))
    return tuple(found)


def not_trained(training: TrainingSettings) -> list[str]:
    """The paper's training experiments that no variant repeats."""
    single, other = "single chunks (the paper’s Fig. 6)", "other rewards ({} Table 4)"
    if not training.single_chunks and not training.chunk_rewards:
        return [f"Training {single} and {other.format('its')}."]
    if not training.single_chunks:
        return [f"Training {single}."]
    return [] if training.chunk_rewards else [f"Training with {other.format('the paper’s')}."]
