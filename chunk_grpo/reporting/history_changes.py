"""Which scores moved since their reference, when many are looked at and images were drawn with new noise.

Two evaluations of the same policies by the same scorer on the same prompts differ by the noise that the images began
with. If nothing changed, a prompt's mean is as likely above as below its earlier one by any amount: its difference
changes its sign at random, together in all scores, since they judge images of the same noise. So the signs of all
prompts are drawn again many times, and a score has moved if its mean difference is larger, in units of the root of the
summed squares, than that of ANY score in all but a share `ALPHA` of the draws (the "max T" of P. Westfall and S. Young,
Resampling-Based Multiple Testing, 1993). That takes no model of the scores, holds for few prompts and for scores that
are 0 or 1, and uses how scores go together, which Holm's correction cannot. Own code, since
`scipy.stats.permutation_test` tests one statistic at a time.

Prompts with the same caption change their sign together: they hold no more than one prompt would if the policies are
other ones than those of the reference.

The reference of a score is the evaluation that set its level: the first one, and from then on the last one in which it
moved or its scorer changed. The previous evaluation would hide a slow drift; the first one for ever would hide
everything after the first true change. Scores that have different references are tested apart, and their p-values
multiplied by the number of such groups: one draw of signs fits one pair of evaluations.
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
"""Chance that an evaluation in which nothing changed has any score that "moved"."""
DRAWS = 9_999
BLOCK = 500
"""Draws at once: bounds the memory."""
ROUNDING = 1e-9
"""Two statistics that differ by no more are equal."""

METHOD = (
    "A score is compared with its reference: the evaluation in which it last moved or its scorer changed, or the first "
    "one. Its difference is paired by prompt. Without a change all differences of an evaluation lie within their bands "
    f"in at least {1 - ALPHA:.0%} of evaluations: the signs of the prompts’ differences are drawn {DRAWS:,} times "
    "(captions that repeat together, all scores at once), and the bands hold the largest standardised difference of "
    "any score. Intervals of the means are those of the report, each for itself."
)

Prompt = tuple[str, str]
"""(prompt_id, caption)."""
Means = Mapping[Score, Mapping[Prompt, float]]
ReadMeans = Callable[[str], pa.Table]
"""The table evaluation_prompts of an evaluation by its name."""


@dataclass(frozen=True)
class JointTest:
    """The tests of M scores.

    Attributes:
        p_values: [M] adjusted for looking at all of them.
        bands: [M] what each difference of means stays within, together, with the chance 1 - `ALPHA`.
    """

    p_values: NDArray[np.float64]
    bands: NDArray[np.float64]


def joint_test(
    parts: NDArray[np.float64], generator: np.random.Generator, groups: int = 1, draws: int = DRAWS
) -> JointTest:
    """Which sums over captions are larger than chance makes the largest of them.

    Args:
        parts: [K, M] what each of K captions adds to each of M differences of means; 0 where it has no prompt. No
            column is all 0.
        generator: Source of the signs.
        groups: Number of such tests that are looked at together.
        draws: Of signs.
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
    """Fill in what became of each score since its reference.

    Args:
        measured: The newest evaluation.
        earlier: The history before it, in the order of time; no row of the same evaluation.
        read_means: Reads the prompts' means of an earlier evaluation; only references are asked for.

    Returns:
        The same with change, reference, difference, band and p_value of each row.
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
            # An evaluation that is recorded again was perhaps the reference itself.
            own = last.next_reference == row.evaluation
            groups[last.evaluation if own else last.next_reference].append(row)
    now = _means(measured.prompts)
    pairs = [
        (reference, rows, _differences(rows, now, _means(read_means(reference))))
        for reference, rows in groups.items()
    ]
    tested = sum(any(_can_tell(d) for d in differences) for _, _, differences in pairs)
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
    """Of each row's score, the newer mean less the older one of each prompt that both have."""
    return [
        {
            prompt: mean - then[row.score][prompt]
            for prompt, mean in now[row.score].items()
            if prompt in then.get(row.score, {})
        }
        for row in rows
    ]


def _can_tell(differences: Mapping[Prompt, float]) -> bool:
    """Whether there are captions enough: the rarest outcome, all of one sign, must be rarer than `ALPHA`."""
    captions = len({caption for _, caption in differences})
    return any(differences.values()) and 2.0 ** (1 - captions) <= ALPHA


def _compared(
    reference: str, rows: Sequence[HistoryRow], differences: Sequence[Mapping[Prompt, float]], groups: int
) -> list[HistoryRow]:
    """The rows of one reference, with what became of them."""
    told = [place for place, one in enumerate(differences) if _can_tell(one)]
    captions = sorted({caption for place in told for _, caption in differences[place]})
    row_of = {caption: row for row, caption in enumerate(captions)}
    parts = np.zeros((len(captions), len(told)))
    for column, place in enumerate(told):
        for (_, caption), value in differences[place].items():
            parts[row_of[caption], column] += value / len(differences[place])
    test = joint_test(parts, np.random.default_rng(0), groups) if told else None
    found = []
    for place, (row, one) in enumerate(zip(rows, differences, strict=True)):
        if not one:
            found.append(replace(row, change="prompts", reference=reference))
            continue
        difference = sum(one.values()) / len(one)
        row = replace(row, reference=reference, difference=difference)
        if test is None or place not in told:
            change: Change = "unknown" if any(one.values()) else "same"
            found.append(replace(row, change=change))
            continue
        column = told.index(place)
        p_value = float(test.p_values[column])
        change = "moved" if p_value <= ALPHA else "none"
        found.append(replace(row, change=change, band=float(test.bands[column]), p_value=p_value))
    return found
