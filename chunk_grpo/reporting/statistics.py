"""Paired intervals over training seeds and prompts.

Pairs share prompt and sample seed. The mean over R training seeds and P prompts is that of a crossed design with random
effects of the training seed, of the caption, and of both together. Prompts with the same caption are one caption, which
counts as often as it has prompts. With seed means z_r, caption means m_c and weights w_c, three mean squares estimate
variances of the mean:

    A = s^2(z) / R                                     seeds, and the interaction
    B = K / (K - 1) sum_c w_c^2 (m_c - mean)^2         captions, and the interaction
    E = K / (K - 1) sum_cr w_c^2 e_cr^2 / (R (R - 1))  the interaction, by the residuals e_cr of both means

A + B - E is the variance of the mean. It cannot be less than A or B, so neither is the estimate. The interval uses
Student's t with Satterthwaite's degrees of freedom, because there are few training seeds. In simulations with the
components of the toy runs it covers 92 to 98 % at a nominal 95 %, the more of these the smaller the effect of the seed
(tests/reporting/test_coverage.py).

Source: the method of moments for crossed random effects, for example S. R. Searle, G. Casella and C. E. McCulloch,
Variance Components, 1992.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

LEVEL = 0.95
POWER = 0.8
"""Probability with which a difference as large as `Interval.detectable` is shown."""
MIN_SEEDS = 6
"""Training seeds below which no two variants are claimed to differ: fewer could hardly show it."""
Verdict = Literal["above", "below", "none", "unknown"]

METHOD = (
    "Each image of a tuned policy is paired with the image of the base model for the same prompt and the "
    "same sample seed; differences are averaged over the samples of a prompt. The mean is over prompts and "
    "training seeds. Its standard error has three parts: the training seed, the caption with all its prompts, "
    "and both together (within categories where categories are averaged; captions only if "
    "there is one training seed). The 95 % interval is the mean ± t × standard error, with t from Student’s "
    "distribution with Satterthwaite’s degrees of freedom; few training seeds therefore give a wide interval. The "
    "intervals are not corrected for multiple comparisons. Two variants count as different on a score only if they "
    f"have at least {MIN_SEEDS} training seeds and the p-value of their difference, with one degree of freedom fewer "
    "than training seeds at most, corrected by Holm’s method for all pairs on this score, is at most 0.05. With fewer "
    "training seeds no pair is tested: the smallest p-values of these intervals are then too small for the "
    "correction."
)


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % interval."""

    mean: float
    """The estimate."""
    low: float
    """Lower end; NaN if a stratum has fewer than two captions."""
    high: float
    """Upper end; NaN in the same case."""
    standard_error: float
    """Standard error of the mean."""
    degrees_of_freedom: float
    """Degrees of freedom of Student's t; infinite if nothing varies."""
    num_seeds: int
    """Number of training seeds."""
    num_prompts: int
    """Number of prompts."""
    num_captions: int
    """Number of distinct captions."""

    @property
    def p_value(self) -> float:
        """Two-sided p-value of the mean 0, by Student's t; NaN if there are no ends."""
        return self._p_value(self.degrees_of_freedom)

    def _p_value(self, freedom: float) -> float:
        if self.standard_error == 0:
            return 1.0 if self.mean == 0 else 0.0
        return 2 * float(stats.t.sf(abs(self.mean) / self.standard_error, freedom))

    @property
    def detectable(self) -> float:
        """True mean whose interval leaves out zero with a probability of `POWER`, at this standard error."""
        t = stats.t(self.degrees_of_freedom)
        return float(t.ppf(0.5 + LEVEL / 2) + t.ppf(POWER)) * self.standard_error

    @property
    def pair_p_value(self) -> float:
        """p-value for a difference of two variants, to be corrected by `holm`; NaN below `MIN_SEEDS` training seeds.

        It has R - 1 degrees of freedom at most: Satterthwaite's are estimated, and too many where the estimate is off,
        which the smallest p-values of a correction are made of.
        """
        if self.num_seeds < MIN_SEEDS:
            return math.nan
        return self._p_value(min(self.degrees_of_freedom, self.num_seeds - 1))

    @property
    def verdict(self) -> Verdict:
        """Side of zero on which the whole interval lies; "none" if it includes zero, "unknown" if it has no ends."""
        if math.isnan(self.low):
            return "unknown"
        if self.low > 0:
            return "above"
        return "below" if self.high < 0 else "none"


@dataclass(frozen=True)
class _Stratum:
    """Columns that are averaged together."""

    columns: NDArray[np.intp]
    """[P_c] column indices."""
    cluster: NDArray[np.intp]
    """[P_c] number of each column's caption, 0..K_c - 1."""

    @property
    def num_clusters(self) -> int:
        return int(self.cluster.max()) + 1


def crossed_interval(
    values: NDArray[np.float64], strata: Sequence[str] | None = None, captions: Sequence[str] | None = None
) -> Interval:
    """Mean over training seeds and prompts, with its 95 % interval.

    Args:
        values: [R, P], one row per training seed, one column per prompt; finite. R = 1 for the base model.
        strata: [P] names; the mean is then the unweighted mean of the strata's means (GenEval's overall). None: one
            stratum.
        captions: [P] texts; columns with the same text are one caption. None: all differ.

    Raises:
        ValueError: Wrong shape, a value that is not finite, or strata or captions of another length.
    """
    R, P = _check(values, strata, captions)
    parts = _strata(P, strata, captions)
    mean = float(np.mean([values[:, part.columns].mean() for part in parts]))
    num_captions = P if captions is None else len(set(captions))
    if min(part.num_clusters for part in parts) < 2:
        return Interval(mean, math.nan, math.nan, math.nan, math.nan, R, P, num_captions)
    variance, freedom = _variance_of_mean(values, parts)
    standard_error = math.sqrt(variance)
    if standard_error <= 1e-12 * float(np.abs(values).max()):  # only rounding of the sums varies
        return Interval(mean, mean, mean, 0.0, math.inf, R, P, num_captions)
    half_width = float(stats.t.ppf(0.5 + LEVEL / 2, freedom)) * standard_error
    return Interval(mean, mean - half_width, mean + half_width, standard_error, freedom, R, P, num_captions)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values of N hypotheses, by Holm's step-down method; NaN stays NaN and counts.

    Rejecting those of at most alpha rejects a true hypothesis with a probability of at most alpha, however the tests
    depend on each other, if no p-value is too small too often. `Interval.p_value` is with few training seeds: of
    simulated reports on six equal variants, at alpha 0.05 a pair differed in 26 % with 3 seeds, 11 % with 5, 8 % with 6
    and 7 % with 8; by `Interval.pair_p_value` in 1 % with 6 and 8 (tests/reporting/test_coverage.py). Source: S. Holm,
    Scandinavian Journal of Statistics 6, 1979.
    """
    order = sorted(range(len(p_values)), key=lambda i: (math.isnan(p_values[i]), p_values[i]))
    found, largest = [math.nan] * len(p_values), 0.0
    for rank, index in enumerate(order):
        if not math.isnan(p_values[index]):
            largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
            found[index] = largest
    return found


def _variance_of_mean(values: NDArray[np.float64], parts: Sequence[_Stratum]) -> tuple[float, float]:
    """Variance of the mean over seeds and prompts, and Satterthwaite's degrees of freedom of its estimate."""
    R, seed_means = len(values), np.zeros(len(values))
    of_captions, of_both, degrees = [], [], []
    for part in parts:
        K, counts = part.num_clusters, np.bincount(part.cluster)
        weights = counts / counts.sum()  # [K]
        by_caption = np.stack([np.bincount(part.cluster, row) / counts for row in values[:, part.columns]])  # [R, K]
        of_seed, of_caption = by_caption @ weights, by_caption.mean(axis=0)  # [R], [K]
        mean = of_seed.mean()
        residuals = by_caption - of_caption - (of_seed - mean)[:, None]
        scale = K / (K - 1) / len(parts) ** 2
        of_captions.append(scale * float((weights**2 * (of_caption - mean) ** 2).sum()))
        of_both.append(scale * float((weights**2 * residuals**2).sum()) / (R * max(R - 1, 1)))
        degrees.append(K - 1)
        seed_means += of_seed / len(parts)
    of_seeds = float(seed_means.var(ddof=1)) / R if R > 1 else 0.0
    captions = sum(of_captions)
    variance = max(of_seeds + captions - sum(of_both), of_seeds, captions)
    spread = sum(part**2 / freedom for part, freedom in zip(of_captions, degrees, strict=True))
    if R > 1:
        spread += of_seeds**2 / (R - 1)
        spread += sum(part**2 / freedom / (R - 1) for part, freedom in zip(of_both, degrees, strict=True))
    return variance, variance**2 / spread if spread > 0 else math.inf


def _strata(num_prompts: int, strata: Sequence[str] | None, captions: Sequence[str] | None) -> list[_Stratum]:
    names = np.asarray(strata if strata is not None else [""] * num_prompts)
    texts = np.arange(num_prompts) if captions is None else np.asarray(captions)
    groups = [np.flatnonzero(names == name) for name in dict.fromkeys(names.tolist())]
    return [_Stratum(group, np.unique(texts[group], return_inverse=True)[1]) for group in groups]


def _check(
    values: NDArray[np.float64], strata: Sequence[str] | None, captions: Sequence[str] | None
) -> tuple[int, int]:
    if values.ndim != 2 or values.size == 0:
        raise ValueError(f"values must be [seeds, prompts] and not empty, got shape {values.shape}")
    if not np.isfinite(values).all():
        raise ValueError("values must be finite")
    for name, labels in (("strata", strata), ("captions", captions)):
        if labels is not None and len(labels) != values.shape[1]:
            raise ValueError(f"{name} must name {values.shape[1]} prompts, got {len(labels)}")
    return values.shape[0], values.shape[1]
