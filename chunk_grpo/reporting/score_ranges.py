"""Value range of each scorer, as text. Higher is always better."""

from __future__ import annotations

from chunk_grpo.config.judges import NumberReading, QuestionsScorer, VlmJudgeScorer, WiseScorer
from chunk_grpo.config.scorers import (
    AestheticScorer,
    AnyScorer,
    ClipScorer,
    ExternalScorer,
    GenEvalScorer,
    HPSv2Scorer,
    HPSv3Scorer,
    ImageRewardScorer,
    PickScoreScorer,
)

RIGHT_OR_NOT = "1: right, 0: not"


def scale(scorer: AnyScorer) -> str:
    """Kind and range of a scorer's values."""
    match scorer:
        case ClipScorer():
            return f"similarity, {scorer.scale}"
        case PickScoreScorer() | HPSv2Scorer():
            return f"preference, {scorer.scale}"
        case ImageRewardScorer():
            return "preference, standardised"
        case AestheticScorer():
            return "rating, about 1 to 10"
        case HPSv3Scorer():
            return "preference, unbounded"
        case GenEvalScorer():
            return RIGHT_OR_NOT if scorer.reward == "exact" else "graded, at most 1"
        case WiseScorer():
            return "WiScore, 0 to 1" if scorer.protocol == "legacy" else RIGHT_OR_NOT
        case VlmJudgeScorer(reading=NumberReading(scale="judge") as reading):
            return f"judge's scale, {reading.lowest:g} to {reading.highest:g}"
        case VlmJudgeScorer(reading=NumberReading()):
            return "judge's scale, as 0 to 1"
        case VlmJudgeScorer():
            return "probability of yes, 0 to 1"
        case QuestionsScorer():
            return "share of questions, 0 to 1"
        case ExternalScorer():
            return "defined by the scorer"
    return RIGHT_OR_NOT if scorer.kind == "shapes-exact" else "0 to 1"
