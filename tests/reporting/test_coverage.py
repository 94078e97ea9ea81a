"""Coverage of the 95 % intervals by simulation, with variance components of the toy runs."""

from dataclasses import dataclass

import numpy as np
import pytest

from chunk_grpo.reporting.statistics import crossed_interval

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


def test_repeated_captions_are_not_as_many_prompts() -> None:
    source, repeats, K = np.random.default_rng(7), 4, 25
    names = np.repeat([f"{i}" for i in range(K)], repeats).tolist()
    together = apart = 0
    for _ in range(RUNS):
        values = np.repeat(source.normal(size=(1, K)), repeats, axis=1)
        values = values + 0.5 * source.normal(size=(1, K * repeats))
        together += (found := crossed_interval(values, captions=names)).low <= 0 <= found.high
        apart += (found := crossed_interval(values)).low <= 0 <= found.high
    assert together / RUNS == pytest.approx(0.95, abs=ERROR)
    assert apart / RUNS < 0.8
