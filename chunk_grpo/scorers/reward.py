"""Training reward: weighted sum of several scorers' values."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from chunk_grpo.errors import ConfigError, DataError
from chunk_grpo.scorers.base import FloatArray, ScoreBatch, Scorer, check_scores
from chunk_grpo.scorers.running.retry import AWAY_SECONDS, score_with_retries


def weighted_sum(scores: Mapping[str, FloatArray], weights: Mapping[str, float]) -> FloatArray:
    """Weighted sum of scorers' values, added in the order of `weights`.

    Args:
        scores: Scorer name to values, all of one shape, such as [B]. Scorers without a weight do not count.
        weights: Scorer name to weight; at least one.

    Returns:
        Rewards, of that shape.
    """
    total = np.zeros(scores[next(iter(weights))].shape)
    for name, weight in weights.items():
        total += weight * scores[name]
    return total


class Reward:
    """Scorers of the training reward, with their weights.

    Attributes:
        weights: Scorer name to weight.
    """

    def __init__(
        self, scorers: Mapping[str, Scorer], weights: Mapping[str, float], away_seconds: float = AWAY_SECONDS
    ) -> None:
        """Select the scorers that have a weight.

        Args:
            scorers: Name in params.yaml to scorer.
            weights: Scorer name to weight.
            away_seconds: Seconds for which a scorer may be away before training stops.

        Raises:
            ConfigError: A scorer is groupwise; training scores parts of groups.
        """
        self.weights = dict(weights)
        self._scorers = {name: scorers[name] for name in weights}
        self._away_seconds = away_seconds
        for name, scorer in self._scorers.items():
            if scorer.groupwise:
                raise ConfigError(
                    f"rewards.{name}: this scorer compares the images of a prompt, and training scores them in batches "
                    "that may hold a part of a group; choose a pointwise scorer"
                )

    def scores(self, batch: ScoreBatch) -> dict[str, FloatArray]:
        """Scorer name to values [B].

        Raises:
            DataError: A batch cannot be judged, an image is refused, or a score is missing or not finite.
            TransientError: A scorer was away for longer.
        """
        values = {}
        for name, scorer in self._scorers.items():
            scores = score_with_retries(name, scorer, batch, self._away_seconds)
            values[name] = check_scores(name, scores, batch.prompts).values
            for row, reason in scores.refused.items():
                raise DataError(
                    f"scorer {name}: refuses an image of the prompt {batch.prompts[row]!r} ({reason}). Training needs "
                    f"a number for every image; scorers.{name}.refusals applies to evaluation only. Remove the prompt, "
                    "or make the scorer return a number for such images."
                )
        return values
