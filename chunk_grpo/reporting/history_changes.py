"""Changes of all scores since their reference evaluations.

If nothing changed, two evaluations of the same policies on the same prompts differ by the image noise alone, and with
the same image seed not at all. A score has moved if the interval of its difference, paired by prompt, excludes zero. It
is the report's interval (`statistics.crossed_interval`), at the level 1 - `ALPHA` / N for N compared scores: with this
correction (Bonferroni) any score moves in at most about `ALPHA` of the evaluations in which nothing changed.

The reference of a score is the evaluation that set its level: the last one in which it moved or its scorer changed, or
the first one. Comparing with the previous evaluation would miss a slow drift; always comparing with the first would
miss every change after the first one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pyarrow as pa
from scipy import stats

from chunk_grpo.reporting.history import Change, HistoryRow, Measured, Score
from chunk_grpo.reporting.statistics import crossed_interval

ALPHA = 0.01
"""Probability that any score counts as moved in an evaluation in which nothing changed."""
MIN_CAPTIONS = 8
"""Least number of distinct captions to compare: the signs of fewer differences are equal by chance too often."""

METHOD = (
    "A score is compared with its reference: the evaluation in which it last moved or its scorer changed, or the first "
    "one. Differences are paired by prompt. The band is half the width of the report’s interval of the difference, at "
    f"the level 1 − {ALPHA:g} / number of compared scores: if nothing changed, all differences of an evaluation lie "
    f"within their bands in about {1 - ALPHA:.0%} of evaluations or more. The intervals of the means are the report’s "
    "95 % intervals, not corrected for multiple comparisons."
)

Prompt = tuple[str, str]
"""(prompt_id, caption)."""
Means = Mapping[Prompt, float]


def compare(
    measured: Measured,
    earlier: Sequence[HistoryRow],
    read_means: Callable[[str], pa.Table],
) -> tuple[HistoryRow, ...]:
    """Compare each score with its reference.

    Returns the rows of `measured` with change, reference, difference, band and p_value. `earlier` is in order of time,
    with no row of the same evaluation. `read_means` gives an evaluation's table evaluation_prompts, and is called once
    for each reference.
    """
    last = {row.score: row for row in earlier}
    rows = [_with_reference(row, last.get(row.score)) for row in measured.rows]
    now, then = _means(measured.prompts), cache(lambda name: _means(read_means(name)))
    differences = {
        row.score: _differences(now[row.score], then(row.reference).get(row.score, {}))
        for row in rows
        if row.change == "none"
    }
    count = sum(_change(of) == "none" for of in differences.values())
    return tuple(
        _compared(row, differences[row.score], count) if row.score in differences else row for row in rows
    )


def _with_reference(row: HistoryRow, last: HistoryRow | None) -> HistoryRow:
    """The row with the evaluation to compare it with, if there is one."""
    if last is None:
        return row
    if last.scorer_hash != row.scorer_hash:
        return replace(row, change="scorer", reference=last.evaluation)
    # An evaluation that is recorded again may have been the reference itself.
    reference = last.evaluation if last.next_reference == row.evaluation else last.next_reference
    return replace(row, change="none", reference=reference)


def _means(table: pa.Table) -> Mapping[Score, Means]:
    names = (*Score._fields, "prompt_id", "prompt", "mean")
    found: defaultdict[Score, dict[Prompt, float]] = defaultdict(dict)
    for *score, prompt_id, prompt, mean in zip(*(table[name].to_pylist() for name in names), strict=True):
        found[Score(*score)][prompt_id, prompt] = mean
    return found


def _differences(now: Means, then: Means) -> Means:
    """Newer mean minus older one, for the prompts that both evaluations have."""
    return {prompt: mean - then[prompt] for prompt, mean in now.items() if prompt in then}


def _change(differences: Means) -> Change:
    """Result of a comparison; "none" if it takes an interval to tell."""
    if not differences:
        return "prompts"
    if not any(differences.values()):
        return "same"
    return "unknown" if len({caption for _, caption in differences}) < MIN_CAPTIONS else "none"


def _compared(row: HistoryRow, differences: Means, count: int) -> HistoryRow:
    """The row with the result of its comparison, one of `count` that take an interval."""
    row = replace(row, change=_change(differences))
    if row.change == "prompts":
        return row
    values, captions = np.array([list(differences.values())]), [caption for _, caption in differences]
    found = crossed_interval(values, None, captions)
    row = replace(row, difference=found.mean)
    if row.change != "none":
        return row
    error, freedom = found.standard_error, found.degrees_of_freedom
    p_value = 2 * count * float(stats.t.sf(abs(found.mean) / error if error else math.inf, freedom))
    band = error * float(stats.t.isf(ALPHA / 2 / count, freedom))
    change: Change = "moved" if p_value <= ALPHA else "none"
    return replace(row, change=change, band=band, p_value=min(1.0, p_value))
