"""Coverage of the 95 % intervals by simulation, with variance components of the toy runs."""

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pytest

from chunk_grpo.reporting.statistics import MIN_SEEDS, Interval, crossed_interval, holm

RUNS = 1_000
ERROR = 0.021
"""Three standard errors of a coverage of 0.95 in `RUNS` simulations."""


@dataclass(frozen=True)
class Design:
    """Numbers of training seeds and captions, and standard deviations of their effects."""

    seeds: int
    captions: int
    seed: float
    caption: float
    both: float


TINY = Design(seeds=3, captions=73, seed=0.013, caption=0.031, both=0.114)
DESIGNS = {
    "two variants of tiny, 3 seeds": (TINY, 0.964),
    "the same, 5 seeds and 106 captions": (Design(5, 106, 0.013, 0.031, 0.114), 0.953),
    "20 seeds": (Design(20, 106, 0.013, 0.031, 0.114), 0.954),
    "seeds that do not differ": (Design(5, 106, 0.0, 0.031, 0.114), 0.980),
    "seeds that differ much": (Design(3, 40, 1.0, 1.0, 1.0), 0.938),
    "captions that differ much": (Design(3, 106, 0.02, 0.3, 0.1), 0.956),
    "one seed": (Design(1, 40, 0.0, 1.0, 1.0), 0.955),
}
"""Design, and the coverage of 2,000 other simulations."""


def effects(design: Design, source: np.random.Generator) -> np.ndarray:
    """Values [R, K] of mean 0."""
    shape = (design.seeds, design.captions)
    return (
        design.seed * source.normal(size=(shape[0], 1))
        + design.caption * source.normal(size=(1, shape[1]))
        + design.both * source.normal(size=shape)
    )


@pytest.mark.parametrize("name", DESIGNS)
def test_coverage(name: str) -> None:
    (design, expected), source = DESIGNS[name], np.random.default_rng(3)
    found = (crossed_interval(effects(design, source)) for _ in range(RUNS))
    coverage = sum(interval.low <= 0 <= interval.high for interval in found) / RUNS
    assert coverage == pytest.approx(expected, abs=ERROR)


def equal_variants(seeds: int, source: np.random.Generator) -> list[Interval]:
    """The 15 pairs of six equal variants, with the components of the study and its 73 captions of 144 prompts."""
    caption_of = np.arange(144) % 73
    shapes = {0.027: (6, seeds, 1), 0.04: (6, 1, 73), 0.03: (6, seeds, 73), 0.02: (6, seeds, 144)}
    drawn = {scale: scale / 2**0.5 * source.normal(size=shape) for scale, shape in shapes.items()}
    values = drawn[0.027] + (drawn[0.04] + drawn[0.03])[:, :, caption_of] + drawn[0.02]
    names = [str(caption) for caption in caption_of]
    return [crossed_interval(values[b] - values[a], None, names) for a, b in combinations(range(6), 2)]


@pytest.mark.parametrize(
    ("seeds", "expected"),
    [(6, 0.084), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((3, 0.257), (5, 0.113), (8, 0.069)))],
)
def test_pairs_of_equal_variants_are_hardly_ever_told_apart(seeds: int, expected: float) -> None:
    """Share of reports on equal variants in which a pair differs at 0.05: not at all below six seeds.

    `expected` is the share by Satterthwaite's degrees of freedom, of 1,500 or more other simulations.
    """
    source, runs = np.random.default_rng(11), 400
    found = [equal_variants(seeds, source) for _ in range(runs)]
    share = sum(min(holm([i.p_value for i in pairs])) <= 0.05 for pairs in found) / runs
    error = 3 * (expected * (1 - expected) / runs) ** 0.5
    assert share == pytest.approx(expected, abs=error)
    claimed = sum(any(p <= 0.05 for p in holm([i.pair_p_value for i in pairs])) for pairs in found) / runs
    assert claimed <= (0.03 if seeds >= MIN_SEEDS else 0)
