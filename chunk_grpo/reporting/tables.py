"""The report's tables, free of any mark-up; templates turn them into HTML, `to_markdown` into Markdown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from chunk_grpo.artifacts import RunManifest
from chunk_grpo.reporting.comparisons import (
    Comparison,
    Comparisons,
    PairComparison,
    interval_text,
    number,
    signed,
)
from chunk_grpo.reporting.evidence import BASE, MODES
from chunk_grpo.reporting.paper import PaperTable
from chunk_grpo.reporting.series import Chunk
from chunk_grpo.reporting.statistics import Interval

PAGE_COLUMNS = 6
"""Means with their differences and intervals that fit beside each other on the page."""

GENEVAL_CATEGORIES = {
    "single_object": "Single object",
    "two_object": "Two objects",
    "counting": "Counting",
    "colors": "Colors",
    "position": "Position",
    "color_attr": "Color attribution",
}
WISE_CATEGORIES = {
    "culture": "Cultural",
    "time": "Time",
    "space": "Space",
    "biology": "Biology",
    "physics": "Physics",
    "chemistry": "Chemistry",
}
_CATEGORY_HEADS = GENEVAL_CATEGORIES | WISE_CATEGORIES
"""In the order of the benchmarks' tables; other categories follow by their names."""


@dataclass(frozen=True)
class Cell:
    """One cell.

    Attributes:
        text: The value.
        difference: A difference to the base, on a second line.
        interval: Its interval, on a third.
        verdict: Which side of zero the interval lies on, or "warn"; colours the cell. Empty where there is none.
        note: A second line that is no difference.
        heat: Strength of the cell's background, in [0, 1].
    """

    text: str
    difference: str = ""
    interval: str = ""
    verdict: str = ""
    note: str = ""
    heat: float | None = None


@dataclass(frozen=True)
class Row:
    """One row.

    Attributes:
        head: Its name.
        cells: One for each value column.
        variant: Whose colour the row carries, if any.
        mode: base, tuned or hybrid, or what else tells rows of a variant apart.
    """

    head: str
    cells: tuple[Cell, ...]
    variant: str = ""
    mode: str = ""


@dataclass(frozen=True)
class Table:
    """A table: heads of all columns (the first is the rows'), and rows."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]


def difference_cell(mean: float, difference: Interval) -> Cell:
    """A mean, its difference to the base and the interval."""
    return Cell(number(mean), signed(difference.mean), interval_text(difference), difference.verdict)


def policy_table(comparisons: Comparisons, variants: Sequence[str], measures: Sequence[str]) -> Table:
    """The form of the paper's Table 1: rows base and variants, a column for each measure."""
    base = tuple(Cell(number(comparisons.base_mean(m).mean)) for m in measures)
    rows = [Row("base", base, mode=BASE)]
    for variant in variants:
        for mode in MODES:
            found = [comparisons.against_base(variant, mode, m) for m in measures]
            cells = tuple(difference_cell(c.mean, c.difference) for c in found)
            rows.append(Row(f"{variant}, {mode}", cells, variant, mode))
    return Table(("policy", *measures), tuple(rows))


def in_parts(table: Table) -> list[Table]:
    """A table in parts that fit the page's width: the same rows, each with an equal share of the value columns."""
    count = len(table.columns) - 1
    parts = max(1, math.ceil(count / PAGE_COLUMNS))
    edges = [count * part // parts for part in range(parts + 1)]
    return [
        Table(
            (table.columns[0], *table.columns[first + 1 : last + 1]),
            tuple(replace(row, cells=row.cells[first:last]) for row in table.rows),
        )
        for first, last in pairwise(edges)
    ]


def pairs_table(pairs: Sequence[PairComparison]) -> Table:
    """Variants against each other, tuned, on the training reward."""
    rows = tuple(
        Row(
            f"{p.first} − {p.second}",
            (
                Cell(signed(p.difference.mean), verdict=p.difference.verdict),
                Cell(interval_text(p.difference)),
            ),
        )
        for p in pairs
    )
    return Table(("tuned variants", "difference", "95 % interval"), rows)


def category_table(
    comparisons: Comparisons,
    variants: Sequence[str],
    scorer: str,
    overall: Mapping[tuple[str, str], Interval],
    by_prompts: bool,
    overall_head: str,
) -> Table:
    """GenEval's form: a column for each category, and an overall with its difference to the base.

    Args:
        comparisons: On the prompts of one split.
        variants: Rows, in two modes each.
        scorer: What counts.
        overall: (variant, mode) to the overall's difference to the base.
        by_prompts: Whether the overall is the mean of the prompts, not of the categories.
        overall_head: Head of its column.
    """
    prompts = comparisons.prompts_of(scorer)
    present = dict.fromkeys(prompts.categories)
    known = [c for c in _CATEGORY_HEADS if c in present]
    categories = known + sorted(c for c in present if c not in _CATEGORY_HEADS)
    counts = {c: prompts.categories.count(c) for c in categories}
    weights = {c: counts[c] if by_prompts else 1 for c in categories}
    rows = [_category_row(comparisons, "base", (BASE, BASE, scorer), weights, None)]
    for variant in variants:
        for mode in MODES:
            key, difference = (variant, mode, scorer), overall[variant, mode]
            rows.append(_category_row(comparisons, f"{variant}, {mode}", key, weights, difference))
    heads = tuple(f"{_CATEGORY_HEADS.get(c, c)} ({counts[c]})" for c in categories)
    return Table(("policy", *heads, overall_head), tuple(rows))


def _category_row(
    comparisons: Comparisons,
    head: str,
    key: tuple[str, str, str],
    weights: Mapping[str, int],
    difference: Interval | None,
) -> Row:
    policy, mode, scorer = key
    means = comparisons.by_category(policy, mode, scorer, list(weights))
    overall = sum(weights[c] * mean for c, mean in means.items()) / sum(weights.values())
    last = Cell(number(overall)) if difference is None else difference_cell(overall, difference)
    return Row(
        head,
        (*(Cell(number(mean, 2)) for mean in means.values()), last),
        "" if mode == BASE else policy,
        mode,
    )


def chunk_table(chunks: Sequence[Chunk]) -> Table:
    """A plan's chunks with their weights of Eq. (16)."""
    total = sum(chunk.weight for chunk in chunks)
    rows = []
    for index, chunk in enumerate(chunks):
        last = chunk.first_step + chunk.num_steps - 1
        steps = f"{chunk.first_step}" if chunk.num_steps == 1 else f"{chunk.first_step}–{last}"
        cells = (
            str(chunk.num_steps),
            steps,
            number(chunk.mean_l1),
            number(chunk.weight, 2),
            f"{chunk.weight / total:.0%}",
        )
        rows.append(Row(str(index), tuple(Cell(text) for text in cells)))
    return Table(("chunk", "size", "steps", "mean L1", "weight, Eq. (16)", "first draw"), tuple(rows))


def paper_table(table: PaperTable) -> Table:
    """The paper's numbers as printed."""
    rows = []
    for model, values in table.rows:
        texts = (f"{v:.{table.digits}f}" if isinstance(v, float) else v or "–" for v in values)
        rows.append(Row(model, tuple(Cell(text) for text in texts)))
    return Table(("model", *table.columns), tuple(rows))


def runs_table(runs: Sequence[RunManifest]) -> Table:
    """Which stage ran when, how long and where."""
    rows = []
    for run in runs:
        machine = run.accelerator or f"{run.cpu} ({run.cpu_count} cores)"
        started = run.started_at.replace("T", " ")[:16]
        cells = (
            duration(run.seconds),
            started,
            (run.commit or "–")[:10],
            f"{run.peak_memory_mib:,.0f} MiB",
            machine,
        )
        rows.append(Row(run.stage, tuple(Cell(text) for text in cells)))
    return Table(("stage", "time", "started (UTC)", "commit", "peak memory", "machine"), tuple(rows))


def duration(seconds: float) -> str:
    """Seconds as a person says them: 4.2 s, 3 min 05 s, 1 h 20 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def to_markdown(table: Table) -> str:
    """A GitHub-style table; a cell's difference and interval follow its value."""
    heads = (head.replace("|", "\\|") for head in table.columns)
    lines = ["| " + " | ".join(heads) + " |", "|---" + "|---:" * (len(table.columns) - 1) + "|"]
    for row in table.rows:
        lines.append("| " + " | ".join([row.head, *(_flat(cell) for cell in row.cells)]) + " |")
    return "\n".join(lines)


def _flat(cell: Cell) -> str:
    if not cell.difference:
        text = cell.text.replace("|", "\\|")
        return f"{text}<br>{cell.note}" if cell.note else text
    return f"{cell.text}<br>{cell.difference} ({cell.interval})"


def flat_differences(found: Sequence[Comparison]) -> list[tuple[object, ...]]:
    """Rows of plots/differences.csv."""
    return [
        (c.variant, c.mode, c.measure, c.mean, c.difference.mean, c.difference.low, c.difference.high)
        for c in found
    ]


def flat_pairs(pairs: Sequence[PairComparison]) -> list[tuple[object, ...]]:
    """Rows of plots/pairs.csv."""
    return [(p.first, p.second, p.difference.mean, p.difference.low, p.difference.high) for p in pairs]
