"""Scores by category, and scores on splits other than eval, such as benchmarks with their own prompts."""

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
    ReportSettings,
    ScoreBook,
    ScoredPrompts,
    ScorerUse,
)
from chunk_grpo.reporting.official_benchmarks import Benchmark, benchmark_of
from chunk_grpo.reporting.statistics import Interval
from chunk_grpo.reporting.tables import GENEVAL_CATEGORIES, Cell, Row, Table, category_table, policy_table

EVAL = "eval"

Overall = Literal["categories", "prompts"]
"""Unweighted mean over categories (GenEval), or mean over prompts (WISE, whose weights are its category sizes if all
its prompts are scored)."""

OVERALL: dict[str, Overall] = {"shapes-exact": "categories", "geneval": "categories", "wise": "prompts"}
"""Kinds of scorers that are reported by category, with the definition of the overall score."""


@dataclass(frozen=True)
class CategoryTable:
    """One scorer on one split by category, with an overall.

    Attributes:
        scorer: Name of the scorer in params.yaml.
        scale: Value range of the scorer, as text.
        split: Split of the prompts.
        table: A column for each category, and the overall with its difference from the base.
        what: Description of prompts, rules and judge for scorers of a published benchmark; else empty.
        note: Definition of the overall.
        is_overall: Whether the last column is the overall that the benchmark defines; False for the mean of a part of
            its prompts.
        overall: (variant, mode) to the difference of the overall from the base.
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
    """Scores on a split other than eval by the scorers without a category table there, one column each."""

    split: str
    table: Table


def category_tables(book: ScoreBook, evidence: Evidence, settings: ReportSettings) -> list[CategoryTable]:
    """One table for each scorer in `OVERALL` and each of its splits that has several categories."""
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
    """All splits scored by the rules of a published benchmark."""
    found = []
    for use in settings.measured:
        for split in use.splits:
            prompts = book.prompt_set(evidence.prompts, split, use.name)
            if prompts is not None:
                found.append(_benchmark(book, use, split, prompts, evidence, settings))
    return [benchmark for benchmark in found if benchmark is not None]


def left_out_sentences(book: ScoreBook, evidence: Evidence, settings: ReportSettings) -> list[str]:
    """One sentence per scorer and split with refused images: their number, and the number of pairs left out."""
    found = []
    for use in settings.measured:
        for split in use.splits:
            prompts = book.prompt_set(evidence.prompts, split, use.name)
            left_out = None if prompts is None else book.left_out(use.name, prompts.ids)
            if left_out is not None and left_out.refused:
                found.append(
                    f"Images of the split {split} that {use.name} refused: {left_out.refused:,}. (Prompt, sample) "
                    "pairs left out of its numbers as a result, for every policy and training seed: "
                    f"{left_out.samples:,}."
                )
    return found


def split_tables(
    book: ScoreBook, evidence: Evidence, settings: ReportSettings, by_category: Sequence[CategoryTable]
) -> list[SplitTable]:
    """One table for each split other than eval, with the scorers that have no category table for it."""
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
    """Describe each scorer: scale, and metric, version and identity from the metadata of its scores."""
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
    prompts: ScoredPrompts,
    evidence: Evidence,
    settings: ReportSettings,
) -> Benchmark | None:
    """Benchmark behind the scores of a split; incomplete if the scorer refused images."""
    benchmark = benchmark_of(use, split, evidence.prompts, settings)
    refused = book.left_out(use.name, prompts.ids).refused
    if benchmark is None or not refused:
        return benchmark
    refusals = f"images refused and left out: {refused:,}"
    what, differs = f"{benchmark.what}; {refusals}", (*benchmark.differs, refusals)
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
        return "Overall: mean of all prompts, which equals WISE’s weighted mean of the categories"
    if kind == "prompts":
        return "Mean of these prompts only, not WISE’s Overall"
    if set(categories) == set(GENEVAL_CATEGORIES):
        return "Overall: unweighted mean of the six categories"
    return "Overall: unweighted mean of the categories present, not GenEval’s six"
