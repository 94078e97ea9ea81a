"""Scale of each scorer's values. Higher is always better."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from chunk_grpo.config.judges import NumberReading, QuestionsScorer, VlmJudgeScorer, WiseScorer
from chunk_grpo.config.scorer_settings import ScorerSettings
from chunk_grpo.config.scorers import (
    AestheticScorer,
    ClipScorer,
    GenEvalScorer,
    HPSv2Scorer,
    HPSv3Scorer,
    ImageRewardScorer,
    OcrScorer,
    PickScoreScorer,
    ShapesScorer,
)


class Scale(NamedTuple):
    """Kind and range as text, and the least and largest value; infinite where the scorer has none."""

    text: str
    low: float = -inf
    high: float = inf


RIGHT_OR_NOT = Scale("1: right, 0: not", 0, 1)


def scale(scorer: ScorerSettings) -> Scale:
    """Scale of a scorer's values."""
    match scorer:
        case ClipScorer():
            return Scale(f"similarity, {scorer.scale}")
        case PickScoreScorer() | HPSv2Scorer():
            return Scale(f"preference, {scorer.scale}")
        case ImageRewardScorer():
            return Scale("preference, standardised")
        case AestheticScorer():
            return Scale("rating, about 1 to 10")
        case HPSv3Scorer():
            return Scale("preference, unbounded")
        case GenEvalScorer():
            return RIGHT_OR_NOT if scorer.reward == "exact" else Scale("graded, at most 1", high=1)
        case WiseScorer():
            return Scale("WiScore, 0 to 1", 0, 1) if scorer.protocol == "legacy" else RIGHT_OR_NOT
        case VlmJudgeScorer(reading=NumberReading(scale="judge") as reading):
            low, high = reading.lowest, reading.highest
            return Scale(f"judge's scale, {low:g} to {high:g}", low, high)
        case VlmJudgeScorer(reading=NumberReading()):
            return Scale("judge's scale, as 0 to 1", 0, 1)
        case VlmJudgeScorer():
            return Scale("probability of yes, 0 to 1", 0, 1)
        case QuestionsScorer():
            return Scale("share of questions, 0 to 1", 0, 1)
        case ShapesScorer(kind="shapes-exact"):
            return RIGHT_OR_NOT
        case ShapesScorer() | OcrScorer():
            return Scale("0 to 1", 0, 1)
    return Scale("defined by the scorer")
