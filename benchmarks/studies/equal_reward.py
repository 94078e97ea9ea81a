"""Views of a block beside its hypotheses: another score at equal reward, and the reward during training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from scipy import stats

from benchmarks.studies.blocks import BASE, CURVES, Block
from chunk_grpo.reporting.comparisons import signed
from chunk_grpo.reporting.statistics import LEVEL

TUNED = "tuned"
REFERENCES = ("dance", "flow-grpo")
"""Variants of the step level. The distance of the first that a block has is subtracted from that of each policy."""


def at_equal_reward(block: Block, scorer: str) -> tuple[float, list[list[str]]]:
    """R2 of one curve of the change in a score over that in the reward, and each tuned policy's distance from it.

    The curve is a quadratic without constant through all tuned policies, each training seed a point. A distance is
    given with its interval over seeds (Student's t), which does not count the choice of prompts.
    """
    policies = sorted({policy for policy, _ in block.values if policy[1] == TUNED})

    def change(name: str) -> NDArray[np.float64]:
        """Mean over prompts of the differences from the base, [policies, seeds]."""
        rises = [block.values[policy, name] - block.values[BASE, name] for policy in policies]
        means: NDArray[np.float64] = np.stack(rises).mean(axis=2)
        return means

    gain, moved = change(block.reward), change(scorer)
    terms = np.stack([gain.ravel(), gain.ravel() ** 2], axis=1)
    curve, *_ = np.linalg.lstsq(terms, moved.ravel(), rcond=None)
    above = moved - (terms @ curve).reshape(moved.shape)
    fit = 1 - (above**2).sum() / ((moved - moved.mean()) ** 2).sum()
    reference = next((name, TUNED) for name in REFERENCES if (name, TUNED) in policies)
    beyond = above - above[policies.index(reference)]
    rows = []
    for policy, x, y, distances in zip(policies, gain, moved, beyond, strict=True):
        interval = stats.ttest_1samp(distances, 0.0).confidence_interval(LEVEL)
        text = f"{signed(distances.mean())} ({signed(interval.low)} to {signed(interval.high)})"
        own = "" if policy == reference else text
        rows.append([policy[0], signed(x.mean()), signed(y.mean()), own])
    return float(fit), rows


def curve_rows(block: str, results: Path) -> tuple[tuple[str, ...], list[list[str]]]:
    """Columns and rows of the held-out reward by iteration, a mean over the training seeds, and of its mean.

    The mean over the measured iterations is the area under the curve.
    """
    rows = pq.read_table(results / f"{block}{CURVES}.parquet").to_pylist()
    found: dict[str, dict[int, list[float]]] = {}
    for row in rows:
        if row["metric"] == "heldout_reward":
            found.setdefault(row["variant"], {}).setdefault(row["iteration"], []).append(row["value"])
    iterations = sorted({iteration for curve in found.values() for iteration in curve})
    table = []
    for variant, curve in found.items():
        means = [float(np.mean(curve[iteration])) for iteration in iterations]
        table.append([variant, *(f"{mean:.3f}" for mean in means), f"{np.mean(means[1:]):.3f}"])
    return ("variant", *map(str, iterations), "mean after the first"), table
