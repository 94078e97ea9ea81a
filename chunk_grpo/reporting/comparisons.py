"""Tuned policies against the base, and against each other: numbers first, then the sentences they allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from chunk_grpo.errors import DataError
from chunk_grpo.reporting.evidence import BASE, REWARD, PromptSet, ReportSettings, ScoreBook
from chunk_grpo.reporting.statistics import Interval, crossed_interval

NO_BREAK = "\N{NO-BREAK SPACE}"


@dataclass(frozen=True)
class Comparison:
    """One policy in one mode on one measure, against the base.

    Attributes:
        variant: Name.
        mode: tuned or hybrid.
        measure: Scorer, or `REWARD`.
        mean: Of the policy, over prompts and training seeds.
        difference: Policy less base, paired.
        per_seed: The mean difference of each training seed.
    """

    variant: str
    mode: str
    measure: str
    mean: float
    difference: Interval
    per_seed: tuple[float, ...]


@dataclass(frozen=True)
class PairComparison:
    """Two tuned variants on the training reward: `first` less `second`, paired by seed and prompt."""

    first: str
    second: str
    difference: Interval


class Comparisons:
    """All comparisons on one set of prompts, each interval from the same resamples.

    Args:
        book: The scores.
        prompts: Which prompts.
        settings: Variants, draws and seed.
    """

    def __init__(self, book: ScoreBook, prompts: PromptSet, settings: ReportSettings) -> None:
        self._book = book
        self._settings = settings
        self.prompts = prompts

    def base_mean(self, measure: str) -> Interval:
        """Mean of the base over the prompts."""
        return self._interval(self._book.values(BASE, BASE, measure, self.prompts.ids))

    def against_base(self, variant: str, mode: str, measure: str) -> Comparison:
        """One variant in one mode."""
        base = self._book.values(BASE, BASE, measure, self.prompts.ids)
        values = self._book.values(variant, mode, measure, self.prompts.ids)
        difference = values - base
        return Comparison(
            variant=variant,
            mode=mode,
            measure=measure,
            mean=float(values.mean()),
            difference=self._interval(difference),
            per_seed=tuple(float(x) for x in difference.mean(axis=1)),
        )

    def by_category(
        self, policy: str, mode: str, measure: str, categories: Sequence[str]
    ) -> dict[str, float]:
        """Mean per category, over prompts and training seeds."""
        values = self._book.values(policy, mode, measure, self.prompts.ids)
        return {category: float(values[:, self._of(category)].mean()) for category in categories}

    def overall_against_base(self, variant: str, mode: str, measure: str) -> Interval:
        """Difference of the unweighted means over categories (GenEval's overall)."""
        base = self._book.values(BASE, BASE, measure, self.prompts.ids)
        values = self._book.values(variant, mode, measure, self.prompts.ids)
        return self._interval(values - base, self.prompts.categories)

    def between_variants(self) -> list[PairComparison]:
        """Every pair of tuned variants on the training reward.

        Raises:
            DataError: two variants have different training seeds, so they cannot be paired.
        """
        seeds = {v: self._book.train_seeds(v, "tuned", REWARD) for v in self._settings.variants}
        pairs = []
        for second, first in combinations(self._settings.variants, 2):
            if seeds[first] != seeds[second]:
                raise DataError(
                    f"scores of {first!r} hold the training seeds {list(seeds[first])}, those of {second!r} "
                    f"{list(seeds[second])}; pairs need the same `train.seeds`: train both again"
                )
            ids = self.prompts.ids
            difference = self._book.values(first, "tuned", REWARD, ids) - self._book.values(
                second, "tuned", REWARD, ids
            )
            pairs.append(PairComparison(first, second, self._interval(difference)))
        return pairs

    def _of(self, category: str) -> NDArray[np.intp]:
        return np.flatnonzero(np.asarray(self.prompts.categories) == category)

    def _interval(self, values: NDArray[np.float64], strata: Sequence[str] | None = None) -> Interval:
        generator = np.random.default_rng(self._settings.seed)
        draws = self._settings.bootstrap_samples
        return crossed_interval(values, draws, generator, strata, self.prompts.captions)


def number(value: float, digits: int = 3) -> str:
    """A value with a proper minus sign, and no negative zero."""
    text = f"{value:.{digits}f}"
    return text.lstrip("-") if float(text) == 0 else text.replace("-", "\N{MINUS SIGN}")


def signed(value: float, digits: int = 3) -> str:
    """A difference with its sign; zero takes none."""
    text = number(value, digits)
    return text if float(f"{value:.{digits}f}") <= 0 else f"+{text}"


def interval_text(interval: Interval, digits: int = 3) -> str:
    """The two ends, or why there are none."""
    if interval.verdict == "unknown":
        return "no interval: too few prompts"
    return f"{signed(interval.low, digits)}{NO_BREAK}to{NO_BREAK}{signed(interval.high, digits)}"


def prompts_text(interval: Interval) -> str:
    """How many prompts an interval rests on, and how many captions where some repeat."""
    repeats = interval.num_captions < interval.num_prompts
    distinct = f" ({interval.num_captions} distinct captions)" if repeats else ""
    return f"{interval.num_prompts} held-out prompts{distinct}"


def effects_text(found: Sequence[Comparison]) -> str:
    """What the intervals allow to say of policies against the base, variant by variant."""
    return "; ".join(f"{c.variant} {_effect(c.difference)}" for c in found)


def _effect(interval: Interval) -> str:
    word = {"above": "higher", "below": "lower", "none": "no difference shown", "unknown": "undecided"}
    return f"{word[interval.verdict]}, {signed(interval.mean)} ({interval_text(interval)})"


def headline(tuned: Sequence[Comparison]) -> tuple[str, str]:
    """Does it help? A short answer and one sentence, from the intervals on the training reward."""
    reach = tuned[0].difference
    seeds = f"{reach.num_seeds} training seed{'s' if reach.num_seeds > 1 else ''} per variant"
    return _answer(tuned), (
        f"Training reward on {prompts_text(reach)}, tuned against base, {seeds}; mean paired "
        f"difference and 95 % interval: {effects_text(tuned)}."
    )


def _answer(tuned: Sequence[Comparison]) -> str:
    raised = [c.variant for c in tuned if c.difference.verdict == "above"]
    lowered = [c.variant for c in tuned if c.difference.verdict == "below"]
    if all(c.difference.verdict == "unknown" for c in tuned):
        return "Too few prompts to tell."
    if len(raised) == len(tuned):
        return "Yes: the training reward rises."
    if len(lowered) == len(tuned):
        return "No: the training reward falls."
    start = f"The training reward rises for {_listed(raised)}" if raised else "No improvement is shown"
    return f"{start}; it falls for {_listed(lowered)}." if lowered else f"{start}."


def order_sentence(pairs: Sequence[PairComparison]) -> str:
    """Which variants the intervals tell apart; no order is claimed where they do not."""
    shown = [p for p in pairs if p.difference.verdict in ("above", "below")]
    if not pairs:
        return ""
    if not shown:
        return "Between the tuned variants no difference of the training reward is shown."
    parts = []
    for p in shown:
        high, low = (p.first, p.second) if p.difference.verdict == "above" else (p.second, p.first)
        numbers = f"{signed(p.difference.mean)}, {interval_text(p.difference)}"
        parts.append(f"{high} above {low} ({p.first} − {p.second}: {numbers})")
    rest = "" if len(shown) == len(pairs) else " For the other pairs no difference is shown."
    return f"Between the variants, tuned, on the training reward: {'; '.join(parts)}.{rest}"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
