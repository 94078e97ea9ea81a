"""Joint test of the changes of all scores since their reference evaluations.

Two evaluations of the same policies by the same scorer on the same prompts differ by the image noise. If nothing else
changed, the sign of each prompt's difference is random, and shared by all scores, since they judge the same images. The
test draws the signs of all prompts many times. A score has moved if its mean difference, in units of the root of the
summed squares, is larger than that of ANY score in all but a share `ALPHA` of the draws (the "max T" of P. Westfall and
S. Young, Resampling-Based Multiple Testing, 1993). The test needs no model of the scores, is valid for few prompts and
for scores of 0 or 1, and uses the correlation between scores, which Holm's correction does not.
`scipy.stats.permutation_test` tests one statistic at a time, so it is not used.

Prompts with the same caption change their sign together: if the policies differ from those of the reference, they carry
no more information than one prompt.

The reference of a score is the evaluation that set its level: the last one in which it moved or its scorer changed, or
the first one. Comparing with the previous evaluation would miss a slow drift; always comparing with the first would
miss every change after the first one. A draw of signs is valid for one pair of evaluations, so scores with different
references are tested separately, and their p-values are multiplied by the number of such groups.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from chunk_grpo.reporting.history import Change, HistoryRow, Measured, Score

ALPHA = 0.01
"""Probability that any score counts as moved in an evaluation in which nothing changed."""
DRAWS = 9_999
BLOCK = 500
"""Number of draws computed at once; limits memory."""
ROUNDING = 1e-9
"""Statistics that differ by at most this are equal."""

METHOD = (
    "A score is compared with its reference: the evaluation in which it last moved or its scorer changed, or the first "
    "one. Differences are paired by prompt. If nothing changed, all differences of an evaluation lie within their "
    f"bands in at least {1 - ALPHA:.0%} of evaluations: the signs of the prompts’ differences are drawn {DRAWS:,} "
    "times (jointly for repeated captions and for all scores), and the bands contain the largest standardised "
    "difference of any score. The intervals of the means are those of the report, not corrected for multiple "
    "comparisons."
)

Prompt = tuple[str, str]
"""(prompt_id, caption)."""
Means = Mapping[Score, Mapping[Prompt, float]]
ReadMeans = Callable[[str], pa.Table]
"""Evaluation name to its table evaluation_prompts."""


@dataclass(frozen=True)
class JointTest:
    """Joint test of M scores.

    Attributes:
        p_values: [M] p-values, adjusted for multiple comparisons.
        bands: [M] bounds within which all differences of means stay with probability 1 - `ALPHA` if nothing changed.
    """

    p_values: NDArray[np.float64]
    bands: NDArray[np.float64]


def joint_test(
    parts: NDArray[np.float64], generator: np.random.Generator, groups: int = 1, draws: int = DRAWS
) -> JointTest:
    """Test which sums over captions are larger than the largest sum expected by chance.

    Args:
        parts: [K, M] contribution of each of K captions to each of M differences of means; 0 if the caption has no
            prompt. No column is all 0.
        generator: Source of the signs.
        groups: Number of such tests that are evaluated together.
        draws: Number of draws of the signs.
    """
    K = parts.shape[0]
    norms = np.sqrt((parts**2).sum(axis=0))
    scaled = parts / norms
    statistics = np.abs(scaled.sum(axis=0))
    largest = np.concatenate(
        [
            np.abs(generator.choice((-1.0, 1.0), size=(min(BLOCK, draws - start), K)) @ scaled).max(axis=1)
            for start in range(0, draws, BLOCK)
        ]
    )
    beaten = (largest[:, None] >= statistics - ROUNDING).sum(axis=0)
    p_values = np.minimum(1.0, groups * (1 + beaten) / (draws + 1))
    rank = min(draws, int(np.ceil((1 - ALPHA / groups) * (draws + 1))))
    return JointTest(p_values, float(np.sort(largest)[rank - 1]) * norms)


def compare(measured: Measured, earlier: Sequence[HistoryRow], read_means: ReadMeans) -> Measured:
    """Compare each score with its reference.

    Args:
        measured: The newest evaluation.
        earlier: Earlier rows of the history, in order of time; no row of the same evaluation.
        read_means: Reads the prompt means of an earlier evaluation; called for references only.

    Returns:
        `measured` with change, reference, difference, band and p_value filled in for each row.
    """
    before: dict[Score, HistoryRow] = {row.score: row for row in earlier}
    found: dict[Score, HistoryRow] = {}
    groups: defaultdict[str, list[HistoryRow]] = defaultdict(list)
    for row in measured.rows:
        last = before.get(row.score)
        if last is None:
            found[row.score] = row
        elif last.scorer_hash != row.scorer_hash:
            found[row.score] = replace(row, change="scorer", reference=last.evaluation)
        else:
            # An evaluation that is recorded again may have been the reference itself.
            own = last.next_reference == row.evaluation
            groups[last.evaluation if own else last.next_reference].append(row)
    now = _means(measured.prompts)
    pairs = [
        (reference, rows, _differences(rows, now, _means(read_means(reference))))
        for reference, rows in groups.items()
    ]
    tested = sum(any(_is_testable(d) for d in differences) for _, _, differences in pairs)
    for reference, rows, differences in pairs:
        for row in _compared(reference, rows, differences, tested):
            found[row.score] = row
    return replace(measured, rows=tuple(found[row.score] for row in measured.rows))


def _means(table: pa.Table) -> Means:
    names = ("policy", "mode", "split", "scorer", "prompt_id", "prompt", "mean")
    found: defaultdict[Score, dict[Prompt, float]] = defaultdict(dict)
    for *score, prompt_id, prompt, mean in zip(*(table[name].to_pylist() for name in names), strict=True):
        found[Score(*score)][prompt_id, prompt] = mean
    return found


def _differences(rows: Iterable[HistoryRow], now: Means, then: Means) -> list[dict[Prompt, float]]:
    """For each row: prompt to the newer mean minus the older one, for prompts that both evaluations have."""
    return [
        {
            prompt: mean - then[row.score][prompt]
            for prompt, mean in now[row.score].items()
            if prompt in then.get(row.score, {})
        }
        for row in rows
    ]


def _is_testable(differences: Mapping[Prompt, float]) -> bool:
    """Whether there is a difference and enough captions for significance: 2^(1 - n) <= ALPHA."""
    captions = len({caption for _, caption in differences})
    return any(differences.values()) and 2.0 ** (1 - captions) <= ALPHA


def _compared(
    reference: str, rows: Sequence[HistoryRow], differences: Sequence[Mapping[Prompt, float]], groups: int
) -> list[HistoryRow]:
    """The rows of one reference, with the results of their comparison."""
    testable = [place for place, one in enumerate(differences) if _is_testable(one)]
    captions = sorted({caption for place in testable for _, caption in differences[place]})
    row_of = {caption: row for row, caption in enumerate(captions)}
    parts = np.zeros((len(captions), len(testable)))
    for column, place in enumerate(testable):
        for (_, caption), value in differences[place].items():
            parts[row_of[caption], column] += value / len(differences[place])
    test = joint_test(parts, np.random.default_rng(0), groups) if testable else None
    found = []
    for place, (row, one) in enumerate(zip(rows, differences, strict=True)):
        if not one:
            found.append(replace(row, change="prompts", reference=reference))
            continue
        difference = sum(one.values()) / len(one)
        row = replace(row, reference=reference, difference=difference)
        if test is None or place not in testable:
            change: Change = "unknown" if any(one.values()) else "same"
            found.append(replace(row, change=change))
            continue
        column = testable.index(place)
        p_value = float(test.p_values[column])
        change = "moved" if p_value <= ALPHA else "none"
        found.append(replace(row, change=change, band=float(test.bands[column]), p_value=p_value))
    return found
