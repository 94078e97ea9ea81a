"""Scores of random models on a device against the CPU's."""

from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from chunk_grpo.config import Params, load_params
from chunk_grpo.scorers.base import ScoreBatch
from chunk_grpo.scorers.running.registry import make_scorer
from tests.test_presets import compose

KINDS = ("clip", "pickscore", "imagereward", "hpsv2", "hpsv3", "aesthetic", "geneval")
"""Scorers with a model."""

_THINGS = [{"tag": "single_object", "include": [{"class": "cat", "count": 1}]}] * 3


def scores(kind: str, device: str, folder: Path) -> NDArray[np.float64]:
    """Scores of three pictures of noise; the models of the preset random-scorers are below the working folder."""
    pictures = np.random.default_rng(0).integers(0, 256, (3, 48, 48, 3), np.uint8)
    batch = ScoreBatch(pictures, ["a photo of a red cat", "two dogs", "a green chair"], _THINGS, [0, 1, 2])
    scorer = make_scorer(kind, _params(folder).scorers[kind], device)
    try:
        return scorer.score(batch).values
    finally:
        scorer.close()


@cache
def _params(folder: Path) -> Params:
    return load_params(compose("random-scorers", folder))
