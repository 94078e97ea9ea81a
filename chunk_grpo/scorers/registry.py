"""Scorers by name, and the weighted sum of several that training maximises."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from chunk_grpo.errors import ConfigError
from chunk_grpo.scorers.base import ScoreBatch, Scorer, Scores, check_scores
from chunk_grpo.scorers.shapes import ShapesExact, ShapesGraded, ShapesVivid

SCORERS: dict[str, Callable[[], Scorer]] = {
    "shapes-exact": ShapesExact,
    "shapes-graded": ShapesGraded,
    "shapes-vivid": ShapesVivid,
}


def make_scorer(name: str) -> Scorer:
    """The scorer of that name.

    Raises:
        ConfigError: Unknown name.
    """
    if name not in SCORERS:
        raise ConfigError(f"scorers: unknown scorer {name!r}; known are {', '.join(sorted(SCORERS))}")
    return SCORERS[name]()


class Reward:
    """The training reward: sum of weight * score over the configured scorers."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        """Make one scorer for each name in `weights`."""
        self._parts = [(make_scorer(name), weight) for name, weight in weights.items()]

    def score(self, batch: ScoreBatch) -> Scores:
        """Weighted sums as values; each scorer's own values as details."""
        size = len(batch.prompts)
        total = np.zeros(size)
        details = {}
        for scorer, weight in self._parts:
            scores = check_scores(scorer, scorer.score(batch), size)
            total += weight * scores.values
            details[scorer.name] = scores.values
        return Scores(total, details)
