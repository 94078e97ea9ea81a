"""Content of the report without mark-up: sentences, tables, curves and images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chunk_grpo.artifacts import RunManifest
from chunk_grpo.errors import DataError
from chunk_grpo.reporting import gallery, reward_hacking, series, tables, training_tables
from chunk_grpo.reporting.benchmarks import (
    EVAL,
    CategoryTable,
    Judged,
    category_tables,
    judged_splits,
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
from chunk_grpo.reporting.official_benchmarks import benchmarks_not_run
from chunk_grpo.reporting.series import Chunk, Curve
from chunk_grpo.reporting.statistics import METHOD, Interval
from chunk_grpo.reporting.tables import Table
from chunk_grpo.reporting.trained import ChunkUse, Trained, chunk_uses, plan_moments, trained_in_numbers

PAPER_SCORERS = {"hpsv3": "HPSv3", "imagereward": "ImageReward", "pickscore": "PickScore"}
FEW_SCORERS = 2
"""With more scorers outside the reward than this, those without a shown difference share one sentence."""

REWARD_METRICS = {
    "heldout_reward": "training reward on held-out prompts, fixed noise",
    "reward_mean": "training reward on the iteration’s prompts",
}


Curves = dict[str, dict[str, Curve]]
"""Metric to variant to curve."""


@dataclass(frozen=True)
class Profile:
    """The relative L1 profile with the chunks drawn over it."""

    sde: Curve
    ode: Curve
    noise_levels: dict[int, float]
    shown: tuple[Chunk, ...]
    guided: tuple[Chunk, ...] | None


@dataclass(frozen=True)
class Content:
    """Input of the templates, plots and files; a table is None if this run has no data for it.

    Attributes:
        answer: Short answer to "Does it help?".
        sentence: The answer with its numbers.
        remarks: Further sentences: hybrid inference, scorers outside the reward, pairs of variants, refused images.
        comparisons: Comparison with the base of every variant, mode and measure, in the order of the tables.
        base: Measure to the mean of the base.
        grids: Parts of the image grid; one part unless there are many variants.
        rewards: Curves of `REWARD_METRICS`.
        training: Curves of ratios, clipping and gradients.
        watched: Curves of the metrics that can reveal reward hacking; may be empty.
        hacking: Answer to "Is the reward being hacked?"; empty without such metrics.
        uses: Variant to the draws of its chunks; empty if they were not recorded.
        preference: Table of means and differences in the layout of the paper's Table 1.
        others: Split other than eval to the scores that are not in `categories`.
        not_run: Experiments of the paper that this run lacks, one sentence each.
        facts: Settings and environment of the run, (name, value).
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
    shown_chunks: Table
    guided_chunks: Table | None
    rewards: Curves
    training: Curves
    watched: Curves
    hacking: str
    endings: Table | None
    trained: tuple[Trained, ...]
    trained_table: Table
    uses: dict[str, tuple[ChunkUse, ...]]
    draws: Table | None
    clipping: Table | None
    plans: Table | None
    preference: Table
    pairs: tuple[PairComparison, ...]
    categories: tuple[CategoryTable, ...]
    others: dict[str, Table]
    not_run: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    runs: Table
    total_seconds: float
    scorers: Table


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
    pairs = tuple(main.between_variants())
    judged = judged_splits(book, evidence, settings)
    categories = tuple(category_tables(judged, book, settings))
    others = split_tables(judged, book, settings, categories)
    profile, metrics, training = _profile(evidence, settings), evidence.metrics, settings.training
    rewards = {m: _curves(evidence, settings, m) for m in REWARD_METRICS}
    watched = reward_hacking.watched_curves(metrics, training)
    trained = tuple(trained_in_numbers(v, metrics[v], training, evidence.runs) for v in settings.variants)
    uses = {v: chunk_uses(metrics[v]) for v in settings.variants}
    return Content(
        settings=settings,
        answer=answer,
        sentence=sentence,
        remarks=(*_remarks(found, settings, order_sentence(pairs)), *left_out_sentences(judged)),
        method=METHOD.format(draws=settings.bootstrap_samples),
        comparisons=found,
        base={m: main.base_mean(m) for m in measures},
        grids=_grids(evidence, settings, prompts, book),
        profile=profile,
        shown_chunks=tables.chunk_table(profile.shown),
        guided_chunks=tables.chunk_table(profile.guided) if profile.guided else None,
        rewards=rewards,
        training={
            "max_ratio_distance": {v: series.ratio_curve(metrics[v]) for v in settings.variants},
            "clip_fraction": _curves(evidence, settings, "clip_fraction"),
            "grad_norm": _curves(evidence, settings, "grad_norm"),
        },
        watched=watched,
        hacking=reward_hacking.conclusion(rewards["heldout_reward"], watched, training),
        endings=training_tables.endings_table(reward_hacking.endings(metrics, training), training),
        trained=trained,
        trained_table=training_tables.trained_table(trained),
        uses=uses,
        draws=training_tables.draws_table(uses),
        clipping=training_tables.clipping_table(uses),
        plans=training_tables.plan_table({v: plan_moments(metrics[v]) for v in settings.variants}),
        preference=tables.policy_table(main, settings.variants, measures),
        pairs=pairs,
        categories=categories,
        others=others,
        not_run=_not_run(settings, judged, categories, others),
        facts=_facts(evidence.runs, settings),
        runs=tables.runs_table(evidence.runs),
        total_seconds=sum(run.seconds for run in evidence.runs),
        scorers=scorers_table(evidence, settings),
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
    for number, variants in enumerate(gallery.grid_variants(settings.variants), start=1):
        columns = gallery.grid_columns(variants)
        rows = gallery.grid_rows(chosen, columns, evidence.images, texts, book, settings.scorers)
        grids.append(gallery.grid_of("grid" if number == 1 else f"grid-{number}", variants, columns, rows))
    return tuple(grids)


def _remarks(found: Sequence[Comparison], settings: ReportSettings, order: str) -> tuple[str, ...]:
    def sentence(start: str, mode: str, measure: str) -> str:
        return f"{start}: {verdicts_text([c for c in found if (c.mode, c.measure) == (mode, measure)])}."

    hybrid = f"Hybrid inference (the base model takes the last {settings.base_steps} of {settings.num_steps} steps)"
    outside = [scorer for scorer in settings.scorers if scorer not in settings.rewards]
    moved = {c.measure for c in found if c.mode == "tuned" and c.difference.verdict != "none"}
    quiet = [scorer for scorer in outside if scorer not in moved] if len(outside) > FEW_SCORERS else []
    remarks = [sentence(f"{hybrid}, training reward", "hybrid", REWARD)]
    for scorer in outside:
        if scorer not in quiet:
            start = f"{scorer}, which is not part of the reward, tuned against base"
            remarks.append(sentence(start, "tuned", scorer))
    if quiet:
        start = "Scorers that are not part of the reward and show no difference between any tuned variant and the base"
        remarks.append(f"{start}: {', '.join(quiet)}.")
    return (*remarks, *([order] if order else []))


def _facts(runs: Sequence[RunManifest], settings: ReportSettings) -> tuple[tuple[str, str], ...]:
    """Settings, and environment of the runs: each distinct value once."""

    def values(found: Sequence[str | None], without: str = "not recorded") -> str:
        return ", ".join(dict.fromkeys(value for value in found if value)) or without

    packages = sorted({f"{name} {version}" for run in runs for name, version in run.packages.items()})
    return (
        ("preset", settings.preset),
        ("base model", settings.model),
        ("training seeds", ", ".join(map(str, settings.train_seeds))),
        ("image seed", str(settings.image_seed)),
        ("report seed", str(settings.seed)),
        ("commit", values([run.commit for run in runs])),
        ("machine", values([f"{run.cpu}, {run.cpu_count} cores" for run in runs])),
        ("accelerator", values([run.accelerator for run in runs], "none")),
        ("system", values([run.system for run in runs])),
        ("Python", values([run.python for run in runs])),
        ("packages", values(packages)),
    )


def _not_run(
    settings: ReportSettings,
    judged: Sequence[Judged],
    categories: Sequence[CategoryTable],
    others: Mapping[str, Table],
) -> tuple[str, ...]:
    found, kinds = [], {use.kind for use in settings.measured}
    missing = [name for kind, name in PAPER_SCORERS.items() if kind not in kinds]
    if missing:
        found.append(f"The paper’s reward models: {', '.join(missing)}.")
    benchmarks = [one.benchmark for one in judged if one.benchmark is not None]
    found.extend(filter(None, [benchmarks_not_run(benchmarks)]))
    if not categories:
        found.append(
            "Scores by category: no scorer judges images as right or wrong, or all prompts are of one category."
        )
    if not others and all(table.judged.split == EVAL for table in categories):
        found.append("Splits other than eval: none was scored.")
    if settings.other_plans:
        found.append(f"Training with the chunk plans {', '.join(settings.other_plans)}.")
    found.extend(not_trained(settings.training))
    return tuple(found)


def not_trained(training: TrainingSettings) -> list[str]:
    """The paper's training experiments that no variant repeats."""
    left = [] if training.single_chunks else ["single chunks (the paper’s Fig. 6)"]
    left += [] if training.chunk_rewards else ["other rewards (the paper’s Table 4)"]
    return [f"Training with {' and '.join(left)}."] if left else []
