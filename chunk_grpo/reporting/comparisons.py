"""Comparisons of tuned policies with the base and with each other, and the format of their numbers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from chunk_grpo.errors import DataError
from chunk_grpo.reporting.evidence import BASE, ReportSettings, ScoreBook, ScoredPrompts
from chunk_grpo.reporting.statistics import LEVEL, Interval, crossed_interval, holm

NO_BREAK = "\N{NO-BREAK SPACE}"
UNTRAINED = (-1,)
"""Training seeds of a policy that was not trained here."""
DIGITS, EXTRA_DIGITS = 3, 3
SEEN = 0.1
"""Smallest mean difference that is said to be seen, in standard deviations of the score over the base's images.

Ours: half of the difference that Cohen calls small, 0.2 (Statistical Power Analysis for the Behavioral Sciences, 1988,
section 2.2.3). At 0.1, of two images with normal scores, one of each model, the higher model's is the better in 53 of
100 pairs, where luck gives 50.
"""


@dataclass(frozen=True)
class Comparison:
    """One policy in one mode on one measure, compared with the base."""

    variant: str
    """Name of the variant, or of another compared policy."""
    mode: str
    """Tuned or hybrid."""
    measure: str
    """Scorer, or `REWARD`."""
    mean: float
    """Mean of the policy over prompts and training seeds."""
    difference: Interval
    """Paired difference, policy minus base."""
    per_seed: tuple[float, ...]
    """Mean difference of each training seed."""
    spread: float
    """Standard deviation of the measure over the base's images; 0 if they are all equal."""

    @property
    def size(self) -> float:
        """The mean difference in spreads; infinite if the base's images are all equal and the policy's are not."""
        mean = self.difference.mean
        return mean / self.spread if self.spread else math.copysign(math.inf, mean) if mean else 0.0

    @property
    def verdict(self) -> str:
        """The interval's verdict; "unseen" if it lies on one side of zero, and the difference is below `SEEN`."""
        found = self.difference.verdict
        return "unseen" if found in ("above", "below") and abs(self.size) < SEEN else found


@dataclass(frozen=True)
class PairComparison:
    """Two compared policies on one measure, tuned: `first` minus `second`, paired by seed and prompt."""

    first: str
    """Name of a variant or another compared policy."""
    second: str
    """Name of one before it; variants come first."""
    measure: str
    difference: Interval
    p_value: float
    """P-value of no difference, corrected by Holm's method for all pairs on this measure; NaN if the pair is not
    tested."""

    @property
    def is_shown(self) -> bool:
        """Whether the two differ, with the correction for the other pairs."""
        return self.p_value <= 1 - LEVEL

    @property
    def ordered(self) -> tuple[str, str]:
        """The higher and the lower one."""
        return (self.first, self.second) if self.difference.mean > 0 else (self.second, self.first)

    @property
    def lacks_seeds(self) -> bool:
        """Whether the pair has an interval, and too few training seeds for a test."""
        return math.isnan(self.p_value) and self.difference.verdict != "unknown"


class Comparisons:
    """Comparisons on one set of prompts; all with the same intervals."""

    def __init__(self, book: ScoreBook, prompts: ScoredPrompts, settings: ReportSettings) -> None:
        self._book = book
        self._settings = settings
        self.prompts = prompts
        self._answered: dict[str, ScoredPrompts] = {}

    def prompts_of(self, measure: str) -> ScoredPrompts:
        """The prompts that have images to compare on a measure."""
        if measure not in self._answered:
            self._answered[measure] = self._book.answered(measure, self.prompts)
        return self._answered[measure]

    def _values(self, policy: str, mode: str, measure: str) -> NDArray[np.float64]:
        return self._book.values(policy, mode, measure, self.prompts_of(measure).ids)

    def base_mean(self, measure: str) -> Interval:
        """Mean of the base over the prompts, with its interval."""
        return self._interval(measure, self._values(BASE, BASE, measure))

    def against_base(self, variant: str, mode: str, measure: str) -> Comparison:
        """Compare one variant in one mode with the base."""
        values = self._values(variant, mode, measure)
        difference = values - self._values(BASE, BASE, measure)
        return Comparison(
            variant=variant,
            mode=mode,
            measure=measure,
            mean=float(values.mean()),
            difference=self._interval(measure, difference),
            per_seed=tuple(float(x) for x in difference.mean(axis=1)),
            spread=self._book.spread(measure, self.prompts_of(measure).ids),
        )

    def by_category(self, policy: str, mode: str, measure: str, categories: Sequence[str]) -> dict[str, float]:
        """Category to mean over its prompts and the training seeds."""
        values, of = self._values(policy, mode, measure), np.asarray(self.prompts_of(measure).categories)
        return {category: float(values[:, of == category].mean()) for category in categories}

    def overall_against_base(self, variant: str, mode: str, measure: str) -> Interval:
        """Difference from the base of the unweighted mean over categories (GenEval's overall).

        With categories of equal size this is the mean over prompts, and has its interval.
        """
        categories = self.prompts_of(measure).categories
        difference = self._values(variant, mode, measure) - self._values(BASE, BASE, measure)
        return self._interval(measure, difference, None if are_balanced(categories) else categories)

    def between_policies(self, measure: str) -> list[PairComparison]:
        """Compare every pair of compared policies on one measure, tuned.

        A policy that was not trained here is compared with every training seed of a variant. Two such policies have no
        training seeds, and are tested. Variants with different training seeds cannot be paired, and are a DataError.
        """
        names = self._settings.compared
        seeds = {v: self._book.train_seeds(v, "tuned", measure) for v in names}
        values = {v: self._values(v, "tuned", measure) for v in names}
        found = []
        for second, first in combinations(names, 2):
            if len({seeds[first], seeds[second], UNTRAINED} - {UNTRAINED}) > 1:
                raise DataError(
                    f"scores of {first!r} have the training seeds {list(seeds[first])}, scores of {second!r} have "
                    f"{list(seeds[second])}; variants are compared on the same `train.seeds`: train both again"
                )
            found.append((first, second, self._interval(measure, values[first] - values[second])))
        corrected = holm(
            [
                interval.p_value if seeds[first] == seeds[second] == UNTRAINED else interval.pair_p_value
                for first, second, interval in found
            ]
        )
        return [
            PairComparison(first, second, measure, interval, p_value)
            for (first, second, interval), p_value in zip(found, corrected, strict=True)
        ]

    def _interval(self, measure: str, values: NDArray[np.float64], strata: Sequence[str] | None = None) -> Interval:
        return crossed_interval(values, strata, self.prompts_of(measure).captions)


def are_balanced(categories: Sequence[str]) -> bool:
    """Whether all categories have as many prompts, so that their unweighted mean is the mean over prompts."""
    return len(set(Counter(categories).values())) == 1


def number(value: float, digits: int = DIGITS) -> str:
    """Format a value with a typographic minus sign and without negative zero."""
    text = f"{value:.{digits}f}"
    return text.lstrip("-") if float(text) == 0 else text.replace("-", "\N{MINUS SIGN}")


def signed(value: float, digits: int = DIGITS) -> str:
    """Format a difference with its sign; zero has none."""
    text = number(value, digits)
    return text if float(f"{value:.{digits}f}") <= 0 else f"+{text}"


def interval_text(interval: Interval) -> str:
    """Format the two ends of an interval, or the reason why it has none or no width.

    The ends get up to `EXTRA_DIGITS` more digits until they differ and show their side of zero.
    """
    if interval.verdict == "unknown":
        return "no interval: too few prompts"
    if interval.low == interval.high:
        return "the same on every prompt"
    digits = digits_of(interval.low, interval.high)
    return f"{signed(interval.low, digits)}{NO_BREAK}to{NO_BREAK}{signed(interval.high, digits)}"


def difference_text(interval: Interval) -> str:
    """Format the mean of an interval with as many digits as its ends have."""
    return signed(interval.mean, digits_of(interval.low, interval.high))


def digits_of(low: float, high: float) -> int:
    """Digits for an interval and its mean: the ends differ, and one other than 0 does not round to 0.

    At least `DIGITS`; not more if `EXTRA_DIGITS` are too few.
    """

    def are_apart(places: int) -> bool:
        ends = [round(end, places) for end in (low, high)]
        return (ends[0] != ends[1] or low == high) and all(
            end == 0 or shown != 0 for end, shown in zip((low, high), ends, strict=True)
        )

    return next(filter(are_apart, range(DIGITS, DIGITS + EXTRA_DIGITS + 1)), DIGITS)


def p_text(p_value: float) -> str:
    """Format a p-value; NaN is that of no test."""
    if math.isnan(p_value):
        return "not tested"
    return f"{p_value:.3f}" if p_value >= 0.001 else "< 0.001"


def prompts_text(interval: Interval) -> str:
    """Number of prompts behind an interval, and of distinct captions if some repeat."""
    repeats = interval.num_captions < interval.num_prompts
    distinct = f" ({interval.num_captions} distinct captions)" if repeats else ""
    return f"{interval.num_prompts} held-out prompts{distinct}"
