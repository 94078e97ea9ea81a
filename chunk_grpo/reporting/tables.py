"""Tables of the report without mark-up; templates render them as HTML, `to_markdown` as Markdown."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from chunk_grpo.artifacts import RunManifest
from chunk_grpo.progress import duration
from chunk_grpo.reporting.comparisons import Comparisons, PairComparison, difference_text, interval_text, number
from chunk_grpo.reporting.evidence import BASE, Drawn
from chunk_grpo.reporting.markdown import escaped
from chunk_grpo.reporting.series import Chunk
from chunk_grpo.reporting.statistics import Interval

PAGE_COLUMNS = 6
"""Number of columns with means, differences and intervals that fit the page width."""

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
"""Heads in the order of the benchmarks' tables; other categories follow in alphabetical order."""


@dataclass(frozen=True)
class Cell:
    """One cell."""

    text: str
    difference: str = ""
    """Difference from the base, on a second line."""
    interval: str = ""
    """Interval of the difference, on a third line."""
    verdict: str = ""
    """Side of zero on which the interval lies, or "warn"; sets the colour of the cell. May be empty."""
    note: str = ""
    """Second line with other text than a difference."""
    strong: bool = False
    """Whether Markdown prints the value in bold."""
    heat: float | None = None
    """Strength of the background colour, in [0, 1]."""


@dataclass(frozen=True)
class Row:
    """One row."""

    head: str
    cells: tuple[Cell, ...]
    """One cell for each value column."""
    variant: str = ""
    """Compared policy whose colour marks the row; may be empty."""
    mode: str = ""
    """Base, tuned, hybrid, or another text that distinguishes the rows of a variant."""


@dataclass(frozen=True)
class Table:
    """A table: heads of all columns, including that of the row names, and rows."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]


def text_row(head: str, *texts: str, variant: str = "") -> Row:
    """A row of plain cells."""
    return Row(head, tuple(Cell(text) for text in texts), variant)


def difference_cell(mean: float, difference: Interval) -> Cell:
    """Cell with a mean, its difference from the base and the interval."""
    return Cell(number(mean), difference_text(difference), interval_text(difference), difference.verdict)


def policy_table(
    comparisons: Comparisons, drawn: Sequence[Drawn], measures: Sequence[str], label: Callable[[str], str] = str
) -> Table:
    """Table in the layout of the paper's Table 1: rows are base and compared policies, columns are measures."""
    base = tuple(Cell(number(comparisons.base_mean(m).mean)) for m in measures)
    rows = [Row("base", base, mode=BASE)]
    for policy, mode in drawn:
        found = [comparisons.against_base(policy, mode, m) for m in measures]
        cells = tuple(difference_cell(c.mean, c.difference) for c in found)
        rows.append(Row(f"{policy}, {mode}", cells, policy, mode))
    return Table(("policy", *map(label, measures)), tuple(rows))


def in_parts(table: Table) -> list[Table]:
    """Split a table into parts that fit the page width: the same rows, each part with an equal share of the columns."""
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


def pairs_table(pairs: Mapping[str, Sequence[PairComparison]], label: Callable[[str], str] = str) -> Table:
    """Differences between policies, one column per measure; a verdict needs the correction for all pairs."""
    rows = []
    for of_pair in zip(*pairs.values(), strict=True):
        cells = (
            Cell(
                difference_text(p.difference),
                verdict=p.difference.verdict if p.is_shown else "none",
                note=interval_text(p.difference),
            )
            for p in of_pair
        )
        rows.append(Row(f"{of_pair[0].first} − {of_pair[0].second}", tuple(cells)))
    return Table(("tuned", *map(label, pairs)), tuple(rows))


def category_table(
    comparisons: Comparisons,
    drawn: Sequence[Drawn],
    scorer: str,
    overall: Mapping[tuple[str, str], Interval],
    by_prompts: bool,
    overall_head: str,
) -> Table:
    """Table in GenEval's layout: one column per category, and an overall with its difference from the base.

    `comparisons` are on the prompts of one split; `overall` has the difference by images. `by_prompts` if the overall
    is the mean over prompts instead of categories; `overall_head` heads its column.
    """
    prompts = comparisons.prompts_of(scorer)
    present = dict.fromkeys(prompts.categories)
    known = [c for c in _CATEGORY_HEADS if c in present]
    categories = known + sorted(c for c in present if c not in _CATEGORY_HEADS)
    counts = {c: prompts.categories.count(c) for c in categories}
    weights = {c: counts[c] if by_prompts else 1 for c in categories}
    rows = []
    for policy, mode in ((BASE, BASE), *drawn):
        means = comparisons.by_category(policy, mode, scorer, categories)
        cells = [Cell(number(mean, 2)) for mean in means.values()]
        mean = sum(weights[c] * mean for c, mean in means.items()) / sum(weights.values())
        if policy == BASE:
            rows.append(Row("base", (*cells, Cell(number(mean))), mode=BASE))
        else:
            last = difference_cell(mean, overall[policy, mode])
            rows.append(Row(f"{policy}, {mode}", (*cells, last), policy, mode))
    heads = tuple(f"{_CATEGORY_HEADS.get(c, c)} ({counts[c]})" for c in categories)
    return Table(("policy", *heads, overall_head), tuple(rows))


def chunk_table(chunks: Sequence[Chunk]) -> Table:
    """Chunks of a plan with their weights of Eq. (16)."""
    total = sum(chunk.weight for chunk in chunks)
    rows = []
    for index, chunk in enumerate(chunks):
        last = chunk.first_step + chunk.num_steps - 1
        steps = f"{chunk.first_step}" if chunk.num_steps == 1 else f"{chunk.first_step}–{last}"
        weight = (number(chunk.weight, 2), f"{chunk.weight / total:.0%}")
        rows.append(text_row(str(index), str(chunk.num_steps), steps, number(chunk.mean_l1), *weight))
    return Table(("chunk", "size", "steps", "mean L1", "weight, Eq. (16)", "first draw"), tuple(rows))


def runs_table(runs: Sequence[RunManifest]) -> Table:
    """Stages with time, start, commit, peak memory and machine."""
    rows = []
    for run in runs:
        machine = run.accelerator or f"{run.cpu} ({run.cpu_count} cores)"
        started, commit = run.started_at.replace("T", " ")[:16], (run.commit or "–")[:10]
        memory = f"{run.peak_memory_mib:,.0f} MiB"
        rows.append(text_row(run.stage, duration(run.seconds), started, commit, memory, machine))
    return Table(("stage", "time", "started (UTC)", "commit", "peak memory", "machine"), tuple(rows))


def to_markdown(table: Table) -> str:
    """Render a GitHub-style table; differences and intervals follow the value in the same cell. Texts are escaped."""
    heads = map(escaped, table.columns)
    lines = ["| " + " | ".join(heads) + " |", "|---" + "|---:" * (len(table.columns) - 1) + "|"]
    for row in table.rows:
        lines.append("| " + " | ".join([escaped(row.head), *(_flat(cell) for cell in row.cells)]) + " |")
    return "\n".join(lines)


def _flat(cell: Cell) -> str:
    text = f"**{escaped(cell.text)}**" if cell.strong else escaped(cell.text)
    if not cell.difference:
        return f"{text}<br>{escaped(cell.note)}" if cell.note else text
    return f"{text}<br>{escaped(cell.difference)} ({escaped(cell.interval)})"
