"""The toy world's scorers and rewards of them, without a params.yaml; and the base of scorers made for a test."""

from collections.abc import Mapping
from typing import Any

from chunk_grpo.config.scorers import ShapesScorer
from chunk_grpo.scorers.base import Need, Scorer
from chunk_grpo.scorers.reward import Reward
from chunk_grpo.scorers.running.registry import make_scorer

SHAPES_SCORERS = ("shapes-exact", "shapes-graded", "shapes-vivid")


def shapes_scorer(kind: Any, batch_size: int = 256) -> Scorer:
    """One of SHAPES_SCORERS, under the name of its kind."""
    return make_scorer(kind, ShapesScorer(kind=kind, splits=("eval",), batch_size=batch_size))


def shapes_reward(weights: Mapping[str, float], **options: Any) -> Reward:
    """Their weighted sum."""
    return Reward({kind: shapes_scorer(kind) for kind in weights}, weights, **options)


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
