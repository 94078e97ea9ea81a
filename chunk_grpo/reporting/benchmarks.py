"""Scores by category, and those of other prompts than the eval split: benchmarks with prompts of their own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from chunk_grpo.artifacts.schemas import SCORER_KEY
from chunk_grpo.reporting.comparisons import Comparisons
from chunk_grpo.reporting.evidence import (
    BASE,
    MODES,
    Evidence,
    PromptSet,
    ReportSettings,
    ScoreBook,
    ScorerUse,
)
from chunk_grpo.reporting.published import Benchmark, benchmark_of
from chunk_grpo.reporting.statistics import Interval
from chunk_grpo.reporting.tables import GENEVAL_CATEGORIES, Cell, Row, Table, category_table, policy_table

EVAL = "eval"

Overall = Literal["categories", "prompts"]
"""The unweighted mean of categories (GenEval), or that of prompts (WISE: its weights are its categories' sizes, if all
its prompts are there)."""

OVERALL: dict[str, Overall] = {"shapes-exact": "categories", "geneval": "categories", "wise": "prompts"}
"""Kind of scorer that is reported by category to how its overall is made."""


@dataclass(frozen=True)
class CategoryTable:
    """One scorer on one split by category, with an overall.

    Attributes:
        scorer: Its name in params.yaml.
        scale: What its numbers are, in words.
        split: Of the prompts.
        table: A column for each category, and the overall with its difference to the base.
        what: What it is of, where its scorer has the rules of a published benchmark; else empty.
        note: How the overall is made.
        is_overall: Whether the last column is the overall that the scorer's rules define, not the mean of a part.
        overall: (variant, mode) to the overall's difference to the base.
    """

    scorer: str
    scale: str
    split: str
    table: Table
    what: str
    note: str
    is_overall: bool
    overall: dict[tuple[str, str], Interval]


@dataclass(frozen=True)
class SplitTable:
    """The scorers that judge a split other than eval and have no table by category there, a column each."""

    split: str
    table: Table


def category_tables(book: ScoreBook, evidence: Evidence, settings: ReportSettings) -> list[CategoryTable]:
    """Every scorer that counts what is right, on each of its splits that has several categories."""
    found = []
    for use in settings.measured:
        for split in use.splits if use.kind in OVERALL else ():
            prompts = book.prompt_set(evidence.prompts, split, use.name)
            if prompts is not None and len(set(prompts.categories)) > 1:
                benchmark = _benchmark(book, use, split, prompts, evidence, settings)
                comparisons = Comparisons(book, prompts, settings)
                found.append(_category_table(comparisons, settings, use, split, benchmark))
    return found


def benchmarks_run(book: ScoreBook, evidence: Evidence, settings: ReportSettings) -> list[Benchmark]:
    """What was scored by the rules of published benchmarks."""
    found = []
    for use in settings.measured:
        for split in use.splits:
            prompts = book.prompt_set(evidence.prompts, split, use.name)
            if prompts is not None:
                found.append(_benchmark(book, use, split, prompts, evidence, settings))
    return [benchmark for benchmark in found if benchmark is not None]


def left_out_sentences(book: ScoreBook, evidence: Evidence, settings: ReportSettings) -> list[str]:
    """For each scorer and split, how many images it refused, and what is left out for that."""
    found = []
    for use in settings.measured:
        for split in use.splits:
            prompts = book.prompt_set(evidence.prompts, split, use.name)
            left_out = None if prompts is None else book.left_out(use.name, prompts.ids)
            if left_out is not None and left_out.refused:
                found.append(
                    f"Images of the split {split} that {use.name} refused: {left_out.refused:,}. Pairs of prompt and "
                    "sample that its numbers leave out for that, for every policy and training seed alike: "
                    f"{left_out.samples:,}."
                )
    return found


def split_tables(
    book: ScoreBook, evidence: Evidence, settings: ReportSettings, by_category: Sequence[CategoryTable]
) -> list[SplitTable]:
    """For each split but eval, the scorers that judge it and are not among those by category."""
    shown = {(table.scorer, table.split) for table in by_category}
    judged = [(use.name, split) for use in settings.measured for split in use.splits if split != EVAL]
    rest = [pair for pair in judged if pair not in shown]
    found = []
    for split in dict.fromkeys(split for _, split in rest):
        names = [name for name, of in rest if of == split]
        prompts = book.prompt_set(evidence.prompts, split, names[0])
        if prompts is not None:
            comparisons = Comparisons(book, prompts, settings)
            found.append(SplitTable(split, policy_table(comparisons, settings.variants, names)))
    return found


def scorers_table(evidence: Evidence, settings: ReportSettings) -> Table:
    """What each scorer is: scale, and model, version and identity as its scores carry them."""
    rows = []
    for use in settings.measured:
        spec = json.loads(
            (evidence.scores[BASE, use.name].table.schema.metadata or {}).get(SCORER_KEY, b"{}")
        )
        cells = (
            spec.get("name", "not recorded"),
            use.scale,
            str(spec.get("version", "–")),
            spec.get("spec_hash", "–"),
            ", ".join(use.splits),
        )
        rows.append(Row(use.name, tuple(Cell(text) for text in cells)))
    return Table(
        ("scorer", "metric", "scale, higher is better", "version", "identity", "splits"), tuple(rows)
    )


def _benchmark(
    book: ScoreBook,
    use: ScorerUse,
    split: str,
    prompts: PromptSet,
    evidence: Evidence,
    settings: ReportSettings,
) -> Benchmark | None:
    """What a scorer's scores of a split are; with images left out, not the whole benchmark."""
    benchmark = benchmark_of(use, split, evidence.prompts, settings)
    refused = book.left_out(use.name, prompts.ids).refused
    if benchmark is None or not refused:
        return benchmark
    told = f"images refused and left out: {refused:,}"
    what, differs = f"{benchmark.what}; {told}", (*benchmark.differs, told)
    return replace(benchmark, complete=False, what=what, differs=differs)


def _category_table(
    comparisons: Comparisons,
    settings: ReportSettings,
    use: ScorerUse,
    split: str,
    benchmark: Benchmark | None,
) -> CategoryTable:
    kind, categories = OVERALL[use.kind], comparisons.prompts_of(use.name).categories
    overall = dict(_overalls(comparisons, settings.variants, use.name, kind))
    is_overall = kind == "categories" or benchmark is None or benchmark.complete
    head = "Overall" if is_overall else f"Mean of {len(categories):,} prompts"
    return CategoryTable(
        use.name,
        use.scale,
        split,
        category_table(comparisons, settings.variants, use.name, overall, kind == "prompts", head),
        "" if benchmark is None else benchmark.what,
        _note(kind, categories, is_overall),
        is_overall,
        overall,
    )


def _overalls(
    comparisons: Comparisons, variants: Sequence[str], scorer: str, kind: Overall
) -> Iterator[tuple[tuple[str, str], Interval]]:
    for variant in variants:
        for mode in MODES:
            if kind == "categories":
                yield (variant, mode), comparisons.overall_against_base(variant, mode, scorer)
            else:
                yield (variant, mode), comparisons.against_base(variant, mode, scorer).difference


def _note(kind: Overall, categories: Sequence[str], is_overall: bool) -> str:
    if kind == "prompts" and is_overall:
        return "Overall: by WISE’s weights of the categories, which is the mean of all its prompts"
    if kind == "prompts":
        return "Mean of these prompts alone, not WISE’s Overall"
    if set(categories) == set(GENEVAL_CATEGORIES):
        return "Overall: unweighted mean of the six categories"
    return "Overall: unweighted mean of the categories present, not GenEval’s six"
