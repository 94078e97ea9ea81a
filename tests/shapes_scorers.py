"""The toy world's scorers and rewards of them, without a params.yaml; and the base of scorers made for a test."""

from collections.abc import Container, Mapping
from itertools import count
from typing import Any

from chunk_grpo.config.scorers import ShapesScorer
from chunk_grpo.scorers.base import Need, ScoreBatch, Scorer, Scores
from chunk_grpo.scorers.reward import Reward
from chunk_grpo.scorers.running.registry import make_scorer

SHAPES_SCORERS = ("shapes-exact", "shapes-graded", "shapes-vivid", "shapes-edit", "shapes-edit-graded")


def shapes_scorer(kind: Any, batch_size: int = 256) -> Scorer:
    """One of SHAPES_SCORERS, under the name of its kind."""
    return make_scorer(kind, ShapesScorer(kind=kind, splits=("eval",), batch_size=batch_size))


def shapes_reward(weights: Mapping[str, float], **options: Any) -> Reward:
    """Their weighted sum."""
    return Reward({kind: shapes_scorer(kind) for kind in weights}, weights, **options)


def reward_that_is_away(weights: Mapping[str, float], calls: Container[int], **options: Any) -> Reward:
    """Their weighted sum; the first scorer does not answer the calls of these numbers, from 1."""
    scorers = {kind: shapes_scorer(kind) for kind in weights}
    first = next(iter(scorers))
    return Reward(scorers | {first: Away(scorers[first], calls)}, weights, **options)


class ScorerForTests:
    """All of the protocol but `score`."""

    settings = ShapesScorer(kind="shapes-vivid", splits=("eval",), batch_size=4)
    name = "made/for-tests"
    version = 1
    needs: frozenset[Need] = frozenset()
    groupwise = False

    def check(self) -> None: ...

    def spec_hash(self) -> str:
        return "0" * 16

    def close(self) -> None: ...


class Away(ScorerForTests):
    """Another scorer, which does not answer the calls of these numbers."""

    def __init__(self, scorer: Scorer, calls: Container[int]) -> None:
        self._scorer, self._away, self._calls = scorer, calls, count(1)

    def score(self, batch: ScoreBatch) -> Scores:
        if (number := next(self._calls)) in self._away:
            raise ConnectionError(f"away at call {number}")
        return self._scorer.score(batch)
