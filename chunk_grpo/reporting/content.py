"""Content of the report without mark-up: sentences, tables, curves and images."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

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
from chunk_grpo.reporting.comparisons import Comparison, Comparisons, number
from chunk_grpo.reporting.evidence import (
    BASE,
    REWARD,
    Drawn,
    Evidence,
    ReportSettings,
    ScoreBook,
    Source,
    TrainingSettings,
    prompts_of,
)
from chunk_grpo.reporting.flips import flips_of
from chunk_grpo.reporting.gallery import Grid
from chunk_grpo.reporting.official_benchmarks import benchmarks_not_run
from chunk_grpo.reporting.palette import is_crowded
from chunk_grpo.reporting.sentences import headline, order_sentences, verdicts_text
from chunk_grpo.reporting.series import Curve
from chunk_grpo.reporting.statistics import METHOD, POWER
from chunk_grpo.reporting.tables import Table
from chunk_grpo.reporting.trained import chunk_uses, plan_moments, step_uses, trained_in_numbers

PAPER_SCORERS = {"hpsv3": "HPSv3", "imagereward": "ImageReward", "pickscore": "PickScore"}
FEW_SCORERS = 2
"""With more scorers outside the reward than this, those without a shown difference share one sentence."""

ONLY_TRAINED = (
    "Only the trained reward was measured, and it may rise while the images get worse: measure by a scorer outside the "
    "reward too."
)

REWARD_METRICS = {
    "heldout_reward": "training reward on held-out prompts, fixed noise",
    "reward_mean": "training reward on the iteration’s prompts",
}


def reward_curves_text(settings: ReportSettings) -> str:
    """Prompts, steps and sampler of each curve of `REWARD_METRICS`, and of the answer."""
    training = settings.training
    images = f"{training.heldout_images} image{'s' * (training.heldout_images > 1)} each"
    return (
        f"Held-out: the first {training.heldout_prompts} held-out prompts, {images}, without noise in the steps (ODE). "
        "The iteration’s prompts: training prompts, with the noise of training in the steps (SDE). Both take the "
        f"{training.num_steps} steps of training. The answer and the scores are of all held-out prompts in "
        f"{settings.num_steps} steps (ODE), so their level is another: compare the ends of one curve with each other."
    )


def lines_text(settings: ReportSettings) -> str:
    """What the lines of curves by iteration are, and their bands, where there are any."""
    seeds = len(settings.train_seeds)
    if seeds == 1:
        return "Lines: one training seed."
    lines = f"Lines: mean of {seeds} training seeds"
    return f"{lines}." if is_crowded(settings.variants) else f"{lines}; bands: range of {seeds} seeds."


Curves = dict[str, dict[str, Curve]]
"""Metric to variant to curve."""


SECTIONS = ("answer", "images", "profile", "training", "scores", "categories", "limits", "run")
"""Sections of the report, in order."""
_OF_SCORES = {"answer", "scores", "categories", "limits", "run"}
"""Sections that need scores."""


class Content:
    """Input of the templates, plots and files; a table is None if this run has no data for it.

    Of an unfinished run it has each wanted section whose tables exist, about the policies that have them. A missing
    policy, prompt, seed, metric or image is otherwise a DataError that names file and key.
    """

    def __init__(self, evidence: Evidence, settings: ReportSettings, wanted: Collection[str] = SECTIONS) -> None:
        self.settings = settings
        self.sections = tuple(name for name in SECTIONS if name in wanted and _exists(name, evidence, settings))
        self.drawn = settings.only(evidence.images)
        self.scored = self.drawn.only(evidence.scored)
        self.waiting = _waiting(evidence, settings, self.drawn, self.scored)
        book, asked = ScoreBook(evidence.scores, settings.rewards), evidence.prompts.table
        texts = dict(zip(asked["prompt_id"].to_pylist(), asked["prompt"].to_pylist(), strict=True))
        of_scores = not _OF_SCORES.isdisjoint(self.sections)
        if of_scores or "images" in self.sections:
            rated = settings.scorers if of_scores and self.drawn == self.scored else ()
            self.grids = _grids(evidence, self.drawn, book, texts, rated)
        if of_scores:
            self._compare(evidence, book, texts)
            self._judge(evidence, book)
        if "profile" in self.sections and evidence.profile is not None:
            self._profile(evidence.profile, evidence.plans)
        if "training" in self.sections:
            self._training(evidence)
        self.runs = tables.runs_table(evidence.runs)
        self.total_seconds = sum(run.seconds for run in evidence.runs)
        self.facts = _facts(evidence.runs, settings)

    def _compare(self, evidence: Evidence, book: ScoreBook, texts: Mapping[str, str]) -> None:
        """Comparisons on the held-out prompts, in the order of the tables."""
        settings, source = self.scored, evidence.prompts
        prompts = book.prompt_set(source, EVAL, settings.scorers[0])
        if prompts is None:
            raise DataError(
                f"{source.path}: no prompt with split=eval was scored for the base; the report "
                "compares policies on these prompts: run the generate and score stages again"
            )
        main = Comparisons(book, prompts, settings)
        measures = (REWARD, *settings.scorers)
        shown = settings.measures
        self.comparisons = [main.against_base(policy, mode, m) for m in measures for policy, mode in settings.drawn]
        self.base = {m: main.base_mean(m) for m in measures}
        self.pairs = {m: main.between_policies(m) for m in shown}
        tuned = [
            c for c in self.comparisons if (c.mode, c.measure) == ("tuned", REWARD) and c.variant in settings.variants
        ]
        named = {settings.label(m): pairs for m, pairs in self.pairs.items()}
        measured = {*settings.scorers, *settings.training.unseen}
        self.caution = ONLY_TRAINED if measured <= settings.rewards.keys() else None
        self.remarks = [
            *filter(None, [self.caution]),
            *_remarks(self.comparisons, settings),
            *order_sentences(named),
            *_equal_policies(self.comparisons),
        ]
        self.method = f"{METHOD} {_reach(tuned, settings.label(REWARD))}".rstrip()
        self.preference = tables.policy_table(main, settings.drawn, shown, settings.label)
        is_visible = any(grid.changed for grid in self.grids)
        self.answer, self.sentence = headline(tuned, settings.label(REWARD), is_visible=is_visible)
        self.flips = flips_of(evidence, settings, prompts, book, texts)

    def _judge(self, evidence: Evidence, book: ScoreBook) -> None:
        """Scores by category and on other splits, and experiments of the paper that this run lacks."""
        judged = judged_splits(book, evidence, self.settings)
        self.remarks += left_out_sentences(judged)
        self.categories = category_tables(judged, book, self.scored)
        self.others_by_category = any(table.judged.split != EVAL for table in self.categories)
        self.others = split_tables(judged, book, self.scored, self.categories)
        self.not_run = _not_run(self.settings, judged, self.categories, self.others)
        self.scorers = scorers_table(evidence, self.settings)

    def _profile(self, profile: Source, plans: Mapping[str, Source]) -> None:
        """The relative L1 profile and the plans drawn over it."""
        guided = self.settings.guided_plan
        self.sde = series.profile_curve(profile, "sde")
        self.ode = series.profile_curve(profile, "ode")
        self.noise_levels = series.noise_levels(profile)
        self.shown = series.chunks_of(plans[self.settings.shown_plan])
        self.guided = series.chunks_of(plans[guided]) if guided else None
        self.shown_chunks = tables.chunk_table(self.shown)
        self.guided_chunks = tables.chunk_table(self.guided) if self.guided else None

    def _training(self, evidence: Evidence) -> None:
        """Curves, metric to variant to curve, and statistics of the variants."""
        metrics, training = evidence.metrics, self.settings.training

        def curves(metric: str) -> dict[str, Curve]:
            return {variant: series.metric_curve(source, metric) for variant, source in metrics.items()}

        self.rewards: Curves = {metric: curves(metric) for metric in REWARD_METRICS}
        self.training: Curves = {
            "max_ratio_distance": {v: series.ratio_curve(source) for v, source in metrics.items()},
            "clip_fraction": curves("clip_fraction"),
            "grad_norm": curves("grad_norm"),
        }
        self.watched = reward_hacking.watched_curves(metrics, training)
        self.hacking = reward_hacking.conclusion(self.rewards["heldout_reward"], self.watched, training)
        self.endings = training_tables.endings_table(reward_hacking.endings(metrics, training), training)
        self.trained = [trained_in_numbers(v, source, training, evidence.runs) for v, source in metrics.items()]
        self.tradeoffs = reward_hacking.tradeoffs(self.rewards["heldout_reward"], self.watched, training)
        self.by_distance = reward_hacking.by_distance(metrics)
        works: dict[str, dict[str, float | None]] = {
            "images drawn": {line.variant: float(line.images) for line in self.trained},
            "seconds of training": {line.variant: line.seconds for line in self.trained},
        }
        by_work = {name: series.by_work(self.rewards["heldout_reward"], work) for name, work in works.items()}
        self.by_work: Curves = {name: curves for name, curves in by_work.items() if curves}
        self.trained_table = training_tables.trained_table(self.trained)
        self.uses = {v: chunk_uses(source) for v, source in metrics.items()}
        self.draws = training_tables.draws_table(self.uses)
        self.steps = {v: step_uses(source) for v, source in metrics.items()}
        self.clipping = training_tables.clipping_table(self.steps)
        self.plans = training_tables.plan_table({v: plan_moments(source) for v, source in metrics.items()})


def _exists(section: str, evidence: Evidence, settings: ReportSettings) -> bool:
    """Whether the tables of a section exist."""
    is_drawn = BASE in evidence.images and len(evidence.images) > 1
    if section == "images":
        return is_drawn
    if section == "profile":
        plans = {plan for plan in (settings.shown_plan, settings.guided_plan) if plan is not None}
        return evidence.profile is not None and plans <= evidence.plans.keys()
    if section == "training":
        return bool(evidence.metrics)
    scored = evidence.scored & evidence.images.keys()
    return BASE in scored and not scored.isdisjoint(settings.variants)


def _waiting(
    evidence: Evidence, settings: ReportSettings, drawn: ReportSettings, scored: ReportSettings
) -> dict[str, str]:
    """Section to the sentence that names the policies that it lacks so far; only of an unfinished run."""
    done = {
        "images": ("drawn", settings.compared, drawn.compared),
        "training": ("trained", settings.variants, evidence.metrics),
        **dict.fromkeys(("answer", "scores"), ("scored", settings.compared, scored.compared)),
    }
    left = {section: [p for p in policies if p not in there] for section, (_, policies, there) in done.items()}
    return {section: f"Not {done[section][0]} yet: {', '.join(names)}." for section, names in left.items() if names}


def _grids(
    evidence: Evidence, settings: ReportSettings, book: ScoreBook, texts: Mapping[str, str], scorers: Sequence[str]
) -> list[Grid]:
    prompts = prompts_of(evidence.prompts, EVAL)
    chosen = gallery.choose_prompts(prompts, settings.grid_prompts, settings.seed)
    grids = []
    for place, variants in enumerate(gallery.grid_variants(settings.compared), start=1):
        columns = (Drawn(BASE, BASE), *settings.drawn_of(variants))
        images = {p: gallery.first_images(p, evidence.images[p], chosen) for p in (BASE, *variants)}
        rows = gallery.grid_rows(chosen, columns, images, texts, book, scorers, evidence.pictures)
        grids.append(gallery.grid_of("grid" if place == 1 else f"grid-{place}", variants, columns, rows))
    return grids


def _reach(tuned: Sequence[Comparison], label: str) -> str:
    """The differences that this design shows; empty if the standard errors are not known, or nothing varies."""
    found = [c.difference.detectable for c in tuned if c.difference.standard_error > 0]
    if not found:
        return ""
    ends = " to ".join(dict.fromkeys(number(end) for end in (min(found), max(found))))
    return (
        f"With these prompts and training seeds a true difference from the base of {ends} ({label}) is shown with a "
        f"probability of {POWER}, a smaller one less often."
    )


def _remarks(found: Sequence[Comparison], settings: ReportSettings) -> list[str]:
    def sentence(start: str, mode: str, measure: str) -> str:
        return f"{start}: {verdicts_text([c for c in found if (c.mode, c.measure) == (mode, measure)])}."

    hybrid = f"Hybrid inference (the base model takes the last {settings.base_steps} of {settings.num_steps} steps)"
    outside = [scorer for scorer in settings.scorers if scorer not in settings.rewards]
    moved = {c.measure for c in found if c.mode == "tuned" and c.difference.verdict != "none"}
    quiet = [scorer for scorer in outside if scorer not in moved] if len(outside) > FEW_SCORERS else []
    remarks = [sentence(f"{hybrid}, {settings.label(REWARD)}", "hybrid", REWARD)]
    for scorer in outside:
        if scorer not in quiet:
            start = f"{scorer}, which is not part of the reward, tuned against base"
            remarks.append(sentence(start, "tuned", scorer))
    if quiet:
        start = "Scorers that are not part of the reward and show no difference between any tuned variant and the base"
        remarks.append(f"{start}: {', '.join(quiet)}.")
    return remarks


def _equal_policies(found: Sequence[Comparison]) -> list[str]:
    """A sentence for policies with the same scores to the last digit, in which a reader would look for a mistake."""
    numbers: dict[str, list[object]] = {}
    for c in found:
        numbers.setdefault(c.variant, []).append((c.mode, c.measure, c.mean, c.per_seed))
    alike: dict[str, list[str]] = {}
    for variant, scores in numbers.items():
        alike.setdefault(repr(scores), []).append(variant)
    return [
        f"{' and '.join(names)} have the same scores throughout: they trained alike, as with equal chunks."
        for names in alike.values()
        if len(names) > 1
    ]


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
    settings: ReportSettings, judged: Sequence[Judged], categories: Sequence[CategoryTable], others: Mapping[str, Table]
) -> list[str]:
    found, kinds = [], {use.kind for use in settings.measured}
    missing = [name for kind, name in PAPER_SCORERS.items() if kind not in kinds]
    if missing and settings.is_like_paper:
        found.append(f"The paper’s reward models: {', '.join(missing)}.")
    benchmarks = [one.benchmark for one in judged if one.benchmark is not None]
    if settings.is_like_paper:
        found.extend(filter(None, [benchmarks_not_run(benchmarks)]))
    if not categories:
        found.append(
            "Scores by category: no scorer judges images as right or wrong, or all prompts are of one category."
        )
    if not others and all(table.judged.split == EVAL for table in categories):
        found.append("Splits other than eval: none was scored.")
    if settings.other_plans:
        found.append(f"Training with the chunk plans {', '.join(settings.other_plans)}.")
    if settings.is_like_paper:
        found.extend(not_trained(settings.training))
    return found


def not_trained(training: TrainingSettings) -> list[str]:
    """The paper's training experiments that no variant repeats."""
    left = [] if training.single_chunks else ["single chunks (the paper’s Fig. 6)"]
    left += [] if training.chunk_rewards else ["other rewards (the paper’s Table 4)"]
    return [f"Training with {' and '.join(left)}."] if left else []
