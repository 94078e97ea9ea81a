"""Scorers that ask a judge, and batches for the tests."""

from pathlib import Path
from typing import Any

import numpy as np

from chunk_grpo.config.judges import QuestionsScorer, VlmJudgeScorer, WiseScorer
from chunk_grpo.scorers.base import ScoreBatch
from chunk_grpo.scorers.judging.questions import Questions
from chunk_grpo.scorers.judging.vlm_judge import VlmJudge
from chunk_grpo.scorers.wise.scorer import Wise
from tests.scorers.judge_server import Request, asking

GOOD = "Consistency: 2\nRealism: 1\nAesthetic Quality: 0"
STARS = {"kind": "number", "pattern": r"Stars: (-?\d+(?:\.\d+)?)", "lowest": 1.0, "highest": 5.0, "scale": "judge"}


def wise(url: str, folder: Path, **changes: Any) -> Wise:
    options = asking(url, folder) | {"kind": "wise", "splits": ("eval",), "protocol": "legacy", "instructions": None}
    return Wise("wise", WiseScorer.model_validate({**options, **changes}))


def vlm_judge(url: str, folder: Path, key: str = "stars", **changes: Any) -> VlmJudge:
    options = asking(url, folder) | {"kind": "vlm-judge", "splits": ("eval",), "system": None, "image": "before"}
    options |= {"template": 'How many stars has "{prompt}"?', "template_file": None, "reading": STARS}
    return VlmJudge(key, VlmJudgeScorer.model_validate({**options, **changes}))


def questions(url: str, folder: Path, **changes: Any) -> Questions:
    options = asking(url, folder) | {"kind": "questions", "splits": ("dpg",), "system": None, "image": "before"}
    options |= {"template": "{question} Answer yes or no."}
    return Questions("dpg", QuestionsScorer.model_validate({**options, **changes}))


def batch_of(size: int, first: int = 1, record: dict[str, Any] | None = None) -> ScoreBatch:
    """Images of noise with the ids first, first + 1, ..., and metadata for WISE, or all with the same."""
    images = np.random.default_rng(first).integers(0, 256, (size, 6, 5, 3), dtype=np.uint8)
    ids = range(first, first + size)
    records = [{"wise_id": i, "explanation": f"meaning {i}"} if record is None else record for i in ids]
    return ScoreBatch(images, [f"prompt {i}" for i in ids], records, [0] * size)


def id_of(request: Request) -> int:
    return int(request.text.split('Prompt: "prompt ')[1].split('"')[0])
