"""WISE scorers and batches for the tests."""

from pathlib import Path
from typing import Any

import numpy as np

from chunk_grpo.config.judges import WiseScorer
from chunk_grpo.scorers.base import ScoreBatch
from chunk_grpo.scorers.wise.scorer import Wise
from tests.scorers.judge_server import Request, asking

GOOD = "Consistency: 2\nRealism: 1\nAesthetic Quality: 0"


def wise(url: str, folder: Path, **changes: Any) -> Wise:
    options = asking(url, folder) | {
        "kind": "wise",
        "splits": ("eval",),
        "protocol": "legacy",
        "instructions": None,
    }
    return Wise("wise", WiseScorer.model_validate({**options, **changes}))


def batch_of(size: int, first: int = 1) -> ScoreBatch:
    """Images of noise with the ids first, first + 1, ..."""
    images = np.random.default_rng(first).integers(0, 256, (size, 6, 5, 3), dtype=np.uint8)
    ids = range(first, first + size)
    records = [{"wise_id": i, "explanation": f"meaning {i}"} for i in ids]
    return ScoreBatch(images, [f"prompt {i}" for i in ids], records, [0] * size)


def id_of(request: Request) -> int:
    return int(request.text.split('Prompt: "prompt ')[1].split('"')[0])
