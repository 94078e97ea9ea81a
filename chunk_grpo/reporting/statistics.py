"""Paired intervals over training seeds and prompts.

Pairs share prompt and sample seed. The bootstrap resamples captions and training seeds, crossed: a training seed is
drawn with all its captions and a caption with all its training seeds (the "pigeonhole" bootstrap of A. Owen, Annals of
Applied Statistics 1, 2007). Prompts with the same caption are drawn together, since they carry less information than
as many distinct captions. `scipy.stats.bootstrap` is not used because it resamples one axis of each sample: two crossed
axes need index arrays as data, it has no strata and clusters, and it rejects a single training seed.

Percentile intervals of this bootstrap are too narrow for two to five training seeds: with three seeds whose scatter
dominates, they cover 77 % at a nominal 95 %. So the bootstrap only gives the standard error (drawing n - 1 of n makes
its square unbiased), and the interval uses Student's t with Satterthwaite's degrees of freedom. Its coverage is 93 to
99 % in the same simulations (tests/reporting/test_statistics.py repeats two of them).
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
Verdict = Literal["above", "below", "none", "unknown"]

METHOD = (
    "Each image of a tuned policy is paired with the image of the base model for the same prompt and the "
    "same sample seed; differences are averaged over the samples of a prompt. The mean is over prompts and "
    "training seeds. Its standard error comes from {draws:,} bootstrap draws that resample distinct captions, "
    "each with all its prompts, and training seeds at once (crossed, n − 1 of n each, with replacement; "
    "within categories where categories are averaged; captions only if there is one training seed). The "
    "95 % interval is the mean ± t × standard error, with t from Student’s distribution with Satterthwaite’s "
    "degrees of freedom; few training seeds therefore give a wide interval. The intervals are not corrected "
    "for multiple comparisons."
)


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % interval.

    Attributes:
        mean: The estimate.
        low: Lower end; NaN if a stratum has fewer than two captions.
        high: Upper end; NaN in the same case.
        standard_error: Standard error of the mean, by the bootstrap.
        degrees_of_freedom: Degrees of freedom of Student's t; infinite if nothing varies.
        num_seeds: Number of training seeds.
        num_prompts: Number of prompts.
        num_captions: Number of distinct captions, the unit of resampling.
    """

    mean: float
    low: float
    high: float
    standard_error: float
    degrees_of_freedom: float
    num_seeds: int
    num_prompts: int
    num_captions: int

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
    """Columns that are averaged together.

    Attributes:
        columns: [P_c] column indices.
        cluster: [P_c] number of each column's caption, 0..K_c - 1.
    """

    columns: NDArray[np.intp]
    cluster: NDArray[np.intp]

    @property
    def num_clusters(self) -> int:
        return int(self.cluster.max()) + 1


def crossed_interval(
    values: NDArray[np.float64],
    num_draws: int,
    generator: np.random.Generator,
    strata: Sequence[str] | None = None,
    captions: Sequence[str] | None = None,
) -> Interval:
    """Mean over training seeds and prompts, with its 95 % interval.

    Args:
        values: [R, P], one row per training seed, one column per prompt; finite. R = 1 for the base model.
        num_draws: Bootstrap draws, at least 2.
        generator: Source of the draws; equal states give equal intervals.
        strata: [P] names; the mean is then the unweighted mean of the strata's means (GenEval's overall), and
            prompts are drawn within their stratum. None: one stratum.
        captions: [P] texts; columns with the same text are drawn together. None: all differ.

    Raises:
        ValueError: Wrong shape, a value that is not finite, too few draws, or strata or captions of another length.
    """
    R, P = _check(values, num_draws, strata, captions)
    parts = _strata(P, strata, captions)
    seed_weights = _draw_weights(R, num_draws, generator) if R > 1 else np.ones((num_draws, 1))
    prompt_weights = np.empty((num_draws, P))
    for part in parts:
        weights = _draw_weights(part.num_clusters, num_draws, generator)[:, part.cluster]
        prompt_weights[:, part.columns] = weights / weights.sum(axis=1, keepdims=True) / len(parts)
    mean = float(np.mean([values[:, part.columns].mean() for part in parts]))
    num_captions = P if captions is None else len(set(captions))
    if min(part.num_clusters for part in parts) < 2:
        return Interval(mean, math.nan, math.nan, math.nan, math.nan, R, P, num_captions)
    draws = ((seed_weights @ values) * prompt_weights).sum(axis=1)
    standard_error = float(draws.std(ddof=1))
    freedom = _degrees_of_freedom(values, parts)
    scale = float(np.abs(values).max())
    if standard_error <= 1e-12 * scale:  # only rounding of the sums varies
        return Interval(mean, mean, mean, 0.0, freedom, R, P, num_captions)
    half_width = float(stats.t.ppf(0.5 + LEVEL / 2, freedom)) * standard_error
    return Interval(mean, mean - half_width, mean + half_width, standard_error, freedom, R, P, num_captions)


def _degrees_of_freedom(values: NDArray[np.float64], parts: Sequence[_Stratum]) -> float:
    """Satterthwaite's degrees of freedom of the mean over seeds and prompts; infinite if nothing varies.

    The variance of the mean has one part from the seeds, s^2(seed means) / R with R - 1 degrees of freedom,
    and one from the captions of each stratum (weighted by its share squared) with K_c - 1: of P_c prompts in
    K_c captions, K_c / (K_c - 1) times the sum over captions of (summed deviation from the mean / P_c)^2, which
    is s^2(prompt means) / P_c where each prompt has a caption of its own.
    """
    found: list[tuple[float, int]] = []
    if values.shape[0] > 1:
        seed_means = np.mean([values[:, part.columns].mean(axis=1) for part in parts], axis=0)
        found.append((float(seed_means.var(ddof=1)) / len(seed_means), len(seed_means) - 1))
    for part in parts:
        prompt_means, K = values[:, part.columns].mean(axis=0), part.num_clusters
        deviations = np.bincount(part.cluster, prompt_means - prompt_means.mean()) / len(prompt_means)
        found.append((float((deviations**2).sum()) * K / (K - 1) / len(parts) ** 2, K - 1))
    spread = sum(variance**2 / freedom for variance, freedom in found)
    return sum(variance for variance, _ in found) ** 2 / spread if spread > 0 else math.inf


def _draw_weights(size: int, num_draws: int, generator: np.random.Generator) -> NDArray[np.float64]:
    """[num_draws, size] weights that sum to 1 per draw: size - 1 items drawn with replacement, or the only one."""
    drawn = max(size - 1, 1)
    return generator.multinomial(drawn, np.full(size, 1 / size), size=num_draws) / drawn


def _strata(num_prompts: int, strata: Sequence[str] | None, captions: Sequence[str] | None) -> list[_Stratum]:
    names = np.asarray(strata if strata is not None else [""] * num_prompts)
    texts = np.arange(num_prompts) if captions is None else np.asarray(captions)
    groups = [np.flatnonzero(names == name) for name in dict.fromkeys(names.tolist())]
    return [_Stratum(group, np.unique(texts[group], return_inverse=True)[1]) for group in groups]


def _check(
    values: NDArray[np.float64], num_draws: int, strata: Sequence[str] | None, captions: Sequence[str] | None
) -> tuple[int, int]:
    if values.ndim != 2 or values.size == 0:
        raise ValueError(f"values must be [seeds, prompts] and not empty, got shape {values.shape}")
    if not np.isfinite(values).all():
        raise ValueError("values must be finite")
    if num_draws < 2:
        raise ValueError(f"num_draws must be at least 2, got {num_draws}")
    for name, labels in (("strata", strata), ("captions", captions)):
        if labels is not None and len(labels) != values.shape[1]:
            raise ValueError(f"{name} must name {values.shape[1]} prompts, got {len(labels)}")
    return values.shape[0], values.shape[1]
