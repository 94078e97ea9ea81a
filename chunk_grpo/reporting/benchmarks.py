"""Scores by category, and scores on splits other than eval, such as benchmarks with their own prompts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from chunk_grpo.artifacts.schemas import SCORER_KEY
from chunk_grpo.reporting.comparisons import Comparisons, are_balanced
from chunk_grpo.reporting.evidence import BASE, Evidence, LeftOut, ReportSettings, ScoreBook, ScoredPrompts, ScorerUse
from chunk_grpo.reporting.official_benchmarks import Benchmark, benchmark_of
from chunk_grpo.reporting.statistics import Interval
from chunk_grpo.reporting.tables import GENEVAL_CATEGORIES, Table, category_table, policy_table, text_row

EVAL = "eval"

Overall = Literal["categories", "prompts"]
"""Unweighted mean over categories (GenEval), or mean over prompts (WISE, whose weights are its category sizes if all
its prompts are scored)."""

OVERALL: dict[str, Overall] = {
    "shapes-exact": "categories",
    "shapes-edit": "categories",
    "geneval": "categories",
    "wise": "prompts",
}
"""Kinds of scorers that are reported by category, with the definition of the overall score."""


@dataclass(frozen=True)
class Judged:
    """A scorer on one of its splits."""

    use: ScorerUse
    split: str
    prompts: ScoredPrompts
    left_out: LeftOut
    benchmark: Benchmark | None
    """Benchmark behind the scores; incomplete if images were refused. None if there is none."""


@dataclass(frozen=True)
class CategoryTable:
    """One scorer on one split by category, with an overall."""

    judged: Judged
    table: Table
    """A column for each category, and the overall with its difference from the base."""
    note: str
    """Prompts, rules and judge for scorers of a published benchmark, and definition of the overall."""
    is_overall: bool
    """Whether the last column is the overall that the benchmark defines; False for the mean of a part of its
    prompts."""
    overall: dict[tuple[str, str], Interval]
    """(variant, mode) to the difference of the overall from the base."""


def judged_splits(book: ScoreBook, evidence: Evidence, settings: ReportSettings) -> list[Judged]:
    """All scorers on all splits that were scored, in the order of params.yaml."""
    found = []
    for use in settings.measured:
        for split in use.splits:
            prompts = book.prompt_set(evidence.prompts, split, use.name)
            if prompts is None:
                continue
            left_out = book.left_out(use.name, prompts.ids)
            benchmark = benchmark_of(use, split, evidence.prompts, settings)
            if benchmark is not None and left_out.refused:
                refusals = f"images refused and left out: {left_out.refused:,}"
                what, differs = f"{benchmark.what}; {refusals}", (*benchmark.differs, refusals)
                benchmark = replace(benchmark, complete=False, what=what, differs=differs)
            found.append(Judged(use, split, prompts, left_out, benchmark))
    return found


def left_out_sentences(found: Sequence[Judged]) -> list[str]:
    """One sentence per scorer and split with refused images: their number, and the number of pairs left out."""
    return [
        f"Images of the split {one.split} that {one.use.name} refused: {one.left_out.refused:,}. (Prompt, sample) "
        "pairs left out of its numbers as a result, for every policy and training seed: "
        f"{one.left_out.samples:,}."
        for one in found
        if one.left_out.refused
    ]


def category_tables(found: Sequence[Judged], book: ScoreBook, settings: ReportSettings) -> list[CategoryTable]:
    """One table for each scorer in `OVERALL` and each of its splits that has several categories."""
    return [
        _category_table(Comparisons(book, one.prompts, settings), settings, one)
        for one in found
        if one.use.kind in OVERALL and len(set(one.prompts.categories)) > 1
    ]


def split_tables(
    found: Sequence[Judged], book: ScoreBook, settings: ReportSettings, by_category: Sequence[CategoryTable]
) -> dict[str, Table]:
    """Each split other than eval, with a table of the scorers that have no category table for it."""
    shown = [table.judged for table in by_category]
    rest: dict[str, list[Judged]] = {}
    for one in found:
        if one.split != EVAL and one not in shown:
            rest.setdefault(one.split, []).append(one)
    prompts = {split: Comparisons(book, of_split[0].prompts, settings) for split, of_split in rest.items()}
    return {
        split: policy_table(prompts[split], settings.drawn, [one.use.name for one in of_split])
        for split, of_split in rest.items()
    }


def scorers_table(evidence: Evidence, settings: ReportSettings) -> Table:
    """Describe each scorer: scale, and metric, version and identity from the metadata of its scores."""
    rows = []
    for use in settings.measured:
        metadata = evidence.scores[BASE, use.name].table.schema.metadata or {}
        spec = json.loads(metadata.get(SCORER_KEY, b"{}"))
        name, identity = spec.get("name", "not recorded"), spec.get("spec_hash", "–")
        version, splits = str(spec.get("version", "–")), ", ".join(use.splits)
        rows.append(text_row(use.name, name, use.scale.text, version, identity, splits))
    heads = ("scorer", "metric", "scale, higher is better", "version", "identity", "splits")
    return Table(heads, tuple(rows))


def _category_table(comparisons: Comparisons, settings: ReportSettings, one: Judged) -> CategoryTable:
    scorer, kind, benchmark = one.use.name, OVERALL[one.use.kind], one.benchmark
    categories = comparisons.prompts_of(scorer).categories
    overall = {
        (policy, mode): comparisons.overall_against_base(policy, mode, scorer)
        if kind == "categories"
        else comparisons.against_base(policy, mode, scorer).difference
        for policy, mode in settings.drawn
    }
    is_overall = kind == "categories" or benchmark is None or benchmark.complete
    head = "Overall" if is_overall else f"Mean of {len(categories):,} prompts"
    table = category_table(comparisons, settings.drawn, scorer, overall, kind == "prompts", head)
    note = f"{benchmark.what}. " if benchmark else ""
    return CategoryTable(one, table, note + _note(kind, categories, is_overall), is_overall, overall)


def _note(kind: Overall, categories: Sequence[str], is_overall: bool) -> str:
    if kind == "prompts" and is_overall:
        return "Overall: mean of all prompts, which equals WISE’s weighted mean of the categories"
    if kind == "prompts":
        return "Mean of these prompts only, not WISE’s Overall"
    which = "six categories" if set(categories) == set(GENEVAL_CATEGORIES) else "categories present, not GenEval’s six"
    mean = (
        ", which is the mean of all prompts"
        if are_balanced(categories)
        else "; these differ in size, so it is not the mean of all prompts, which the answer is about"
    )
    return f"Overall: unweighted mean of the {which}{mean}"
