"""WISE scorers and batches for the tests."""

from pathlib import Path
from typing import Any

import numpy as np

from chunk_grpo.config.judges import WiseScorer
from chunk_grpo.scorers.base import ScoreBatch
from chunk_grpo.scorers.wise.scorer import Wise
from tests.scorers.judge_server import Request

GOOD = "Consistency: 2\nRealism: 1\nAesthetic Quality: 0"


def wise(url: str, folder: Path, **changes: Any) -> Wise:
    options: dict[str, Any] = {
        "kind": "wise",
        "splits": ("eval",),
        "batch_size": 2,
        "protocol": "legacy",
        "judge": "tiny-judge",
        "instructions": None,
        "request": {},
        "base_url": url,
        "api_key_variable": None,
        "concurrency": 4,
        "attempts": 3,
        "timeout_seconds": 20.0,
        "answers": str(folder),
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
