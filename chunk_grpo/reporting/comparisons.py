"""Comparisons of tuned policies with the base and with each other: numbers, and sentences about them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from chunk_grpo.errors import DataError
from chunk_grpo.reporting.evidence import BASE, REWARD, ReportSettings, ScoreBook, ScoredPrompts
from chunk_grpo.reporting.palette import MANY
from chunk_grpo.reporting.statistics import LEVEL, MIN_SEEDS, Interval, crossed_interval, holm

NO_BREAK = "\N{NO-BREAK SPACE}"
UNTRAINED = (-1,)
"""Training seeds of a policy that was not trained here."""
FROM_BASE = "difference from the base model"
EXTRA_DIGITS = 3
_WORDS = {"above": "higher", "below": "lower", "none": "no difference shown", "unknown": "undecided"}


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


@dataclass(frozen=True)
class PairComparison:
    """Two compared policies on one measure, tuned: `first` minus `second`, paired by seed and prompt."""

    first: str
    """Name of a variant or another compared policy."""
    second: str
    """Name of one before it; variants come first."""
    measure: str
    """Scorer, or `REWARD`."""
    difference: Interval
    """Paired difference."""
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
        )

    def by_category(
        self, policy: str, mode: str, measure: str, categories: Sequence[str]
    ) -> dict[str, float]:
        """Category to mean over its prompts and the training seeds."""
        values, of = self._values(policy, mode, measure), np.asarray(self.prompts_of(measure).categories)
        return {category: float(values[:, of == category].mean()) for category in categories}

    def overall_against_base(self, variant: str, mode: str, measure: str) -> Interval:
        """Difference from the base of the unweighted mean over categories (GenEval's overall)."""
        difference = self._values(variant, mode, measure) - self._values(BASE, BASE, measure)
        return self._interval(measure, difference, self.prompts_of(measure).categories)

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

    def _interval(
        self, measure: str, values: NDArray[np.float64], strata: Sequence[str] | None = None
    ) -> Interval:
        return crossed_interval(values, strata, self.prompts_of(measure).captions)


def number(value: float, digits: int = 3) -> str:
    """Format a value with a typographic minus sign and without negative zero."""
    text = f"{value:.{digits}f}"
    return text.lstrip("-") if float(text) == 0 else text.replace("-", "\N{MINUS SIGN}")


def signed(value: float, digits: int = 3) -> str:
    """Format a difference with its sign; zero has none."""
    text = number(value, digits)
    return text if float(f"{value:.{digits}f}") <= 0 else f"+{text}"


def interval_text(interval: Interval, digits: int = 3) -> str:
    """Format the two ends of an interval, or the reason why it has none or no width.

    The ends get up to `EXTRA_DIGITS` more digits until they differ and show their side of zero.
    """
    if interval.verdict == "unknown":
        return "no interval: too few prompts"
    if interval.low == interval.high:
        return "the same on every prompt"
    digits = digits_of(interval.low, interval.high, digits)
    return f"{signed(interval.low, digits)}{NO_BREAK}to{NO_BREAK}{signed(interval.high, digits)}"


def difference_text(interval: Interval, digits: int = 3) -> str:
    """Format the mean of an interval with as many digits as its ends have."""
    return signed(interval.mean, digits_of(interval.low, interval.high, digits))


def digits_of(low: float, high: float, digits: int = 3) -> int:
    """Digits for an interval and its mean: the ends differ, and one other than 0 does not round to 0.

    At least `digits`; not more if `EXTRA_DIGITS` are too few.
    """

    def are_apart(places: int) -> bool:
        ends = [round(end, places) for end in (low, high)]
        return (ends[0] != ends[1] or low == high) and all(
            end == 0 or shown != 0 for end, shown in zip((low, high), ends, strict=True)
        )

    return next(filter(are_apart, range(digits, digits + EXTRA_DIGITS + 1)), digits)


def prompts_text(interval: Interval) -> str:
    """Number of prompts behind an interval, and of distinct captions if some repeat."""
    repeats = interval.num_captions < interval.num_prompts
    distinct = f" ({interval.num_captions} distinct captions)" if repeats else ""
    return f"{interval.num_prompts} held-out prompts{distinct}"


def effects_text(found: Sequence[Comparison]) -> str:
    """Describe differences from the base: variant by variant, or as a summary if there are many."""
    intervals = [(c.variant, c.difference) for c in found]
    if len(found) > MANY:
        return _summed_up(intervals)
    return "; ".join(
        f"{name} {_WORDS[i.verdict]}, {difference_text(i)} ({interval_text(i)})" for name, i in intervals
    )


def verdicts_text(found: Sequence[Comparison]) -> str:
    """Say for which variants a measure is higher or lower; with numbers if there is one variant or many."""
    if len(found) == 1 or len(found) > MANY:
        return effects_text(found)
    groups: dict[str, list[str]] = {}
    for c in found:
        groups.setdefault(_WORDS[c.difference.verdict], []).append(c.variant)
    return "; ".join(f"{word} for {_listed(names)}" for word, names in groups.items())


def _summed_up(found: Sequence[tuple[str, Interval]]) -> str:
    """Number of variants that are higher, lower or neither, with the smallest and the largest difference."""
    parts = []
    for verdict in ("above", "below", "none", "unknown"):
        those = sorted(
            ((name, i.mean) for name, i in found if i.verdict == verdict), key=lambda one: abs(one[1])
        )
        if not those:
            continue
        count = f"all {len(found)}" if len(those) == len(found) else f"{len(those)} of {len(found)}"
        text = f"{_WORDS[verdict]} for {count}"
        if verdict in ("above", "below"):
            ends = [
                f"{signed(mean)} ({name})"
                for name, mean in (those if len(those) == 1 else those[:: len(those) - 1])
            ]
            text += f", by {' to '.join(ends)}"
        parts.append(text)
    return "; ".join(parts)


def headline(
    tuned: Sequence[Comparison], reward: str = REWARD, *, is_visible: bool = True
) -> tuple[str, str]:
    """Answer "Does it help?" from the intervals on the training reward: a short answer, and one sentence.

    One training of a variant cannot tell its method from its luck, so that "Yes" and "No" need two. `is_visible` is
    whether any of the shown images differs visibly from the base's.
    """
    reach = tuned[0].difference
    seeds = f"{reach.num_seeds} training seed{'s' if reach.num_seeds > 1 else ''} per variant"
    answer = _answer(tuned, reward)
    if not is_visible and any(c.difference.verdict == "above" for c in tuned):
        answer = f"{answer.removeprefix('Yes: ').removesuffix('.')}, too little to see in the images below."
    return answer[0].upper() + answer[1:], (
        f"{reward[0].upper()}{reward[1:]} on {prompts_text(reach)}, tuned against base, {seeds}; mean paired "
        f"difference and 95 % interval: {effects_text(tuned)}."
    )


def _answer(tuned: Sequence[Comparison], reward: str) -> str:
    raised = [c.variant for c in tuned if c.difference.verdict == "above"]
    lowered = [c.variant for c in tuned if c.difference.verdict == "below"]
    if all(c.difference.verdict == "unknown" for c in tuned):
        return "Too few prompts to tell."
    once = "in this one training" if len(tuned) == 1 else "in these trainings, one of each variant,"
    is_once = tuned[0].difference.num_seeds == 1
    if len(raised) == len(tuned):
        return f"{once if is_once else 'Yes:'} the {reward} rises."
    if len(lowered) == len(tuned):
        return f"{once if is_once else 'No:'} the {reward} falls."
    start = f"The {reward} rises for {_named(raised, tuned)}" if raised else "No improvement is shown"
    falling = "it falls" if raised else f"the {reward} falls"
    return f"{start}; {falling} for {_named(lowered, tuned)}." if lowered else f"{start}."


def _named(names: Sequence[str], tuned: Sequence[Comparison]) -> str:
    """The names, or their number if there are many variants."""
    return f"{len(names)} of {len(tuned)} variants" if len(tuned) > MANY else _listed(names)


def order_sentences(pairs: Mapping[str, Sequence[PairComparison]]) -> list[str]:
    """Describe which policies differ, measure by measure, with the correction for all pairs.

    With many policies, only the first is compared with the others. Its place does not depend on the scores; comparing
    with the best variant would be biased, since it is selected by its scores.
    """
    short = [p for found in pairs.values() for p in found if p.lacks_seeds]
    sentences = [_too_few_seeds(short[0].difference.num_seeds)] if short else []
    tested = {m: [p for p in found if not p.lacks_seeds] for m, found in pairs.items()}
    if not any(tested.values()):
        return sentences
    if max(map(len, pairs.values())) > len(list(combinations(range(MANY), 2))):
        return sentences + [_order_of_many(measure, found) for measure, found in tested.items() if found]
    quiet = []
    for measure, found in tested.items():
        shown = [p for p in found if p.is_shown]
        if not shown:
            quiet.append(measure)
            continue
        parts = [f"{p.ordered[0]} above {p.ordered[1]}" for p in shown]
        rest = "" if len(shown) == len(found) else " For the other pairs no difference is shown."
        sentences.append(f"Tuned, {measure}: {_listed(parts)}.{rest}")
    if quiet:
        sentences.append(f"Tuned, {_listed(quiet)}: no difference between them is shown.")
    return sentences


def _too_few_seeds(seeds: int) -> str:
    return (
        f"No two tuned variants are claimed to differ, because they have {seeds} training seed{'s' * (seeds > 1)}: "
        f"below {MIN_SEEDS} the correction for all pairs does not hold. Of simulated reports with 3 seeds and six "
        "equal variants one in four would have named a pair. The table of pairs has their intervals."
    )


def with_first(pairs: Sequence[PairComparison]) -> list[PairComparison]:
    """The pairs that contain the first variant."""
    return [p for p in pairs if p.second == pairs[0].second]


def _order_of_many(measure: str, pairs: Sequence[PairComparison]) -> str:
    against = [(p.first, p.difference) for p in with_first(pairs)]
    apart = sum(p.is_shown for p in pairs)
    return (
        f"Tuned policies compared with {pairs[0].second}, the first one, {measure}: {_summed_up(against)}. "
        f"Of all {len(pairs)} pairs, {apart} differ with the correction for all pairs."
    )


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
