"""What every reward and benchmark offers: one number per image, and named details."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from chunk_grpo.errors import DataError

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class ScoreBatch:
    """B images with what is known of them.

    Attributes:
        images: [B, 3, H, W] in [0, 1].
        prompts: B captions.
        metadata: B records of the prompts table's `metadata` column, parsed.
    """

    images: NDArray[np.float32]
    prompts: Sequence[str]
    metadata: Sequence[Mapping[str, object]]


@dataclass(frozen=True)
class Scores:
    """One value per image, higher is better, and named details per image.

    Attributes:
        values: [B].
        details: Name to [B].
    """

    values: FloatArray
    details: Mapping[str, FloatArray] = field(default_factory=dict)


class Scorer(Protocol):
    """A pointwise scorer; an image's score does not depend on its batch."""

    @property
    def name(self) -> str:
        """The name in params.yaml."""
        ...

    @property
    def version(self) -> int:
        """Raised whenever the same image could score differently."""
        ...

    def score(self, batch: ScoreBatch) -> Scores:
        """Score a batch; raises DataError when an input cannot be judged."""
        ...


def spec_hash(scorer: Scorer) -> str:
    """Identifies what is being measured: name and version."""
    return hashlib.sha256(json.dumps([scorer.name, scorer.version]).encode()).hexdigest()[:16]


def check_scores(scorer: Scorer, scores: Scores, prompts: Sequence[str]) -> Scores:
    """Refuse short or non-finite answers: a failed score is an error, never a reward of 0.

    Raises:
        DataError: A value or a detail is missing, NaN or infinite.
    """
    size = len(prompts)
    if scores.values.shape != (size,):
        raise DataError(
            f"scorer {scorer.name}: needs one value for each of {size} images, got {scores.values.shape}"
        )
    bad = np.flatnonzero(~np.isfinite(scores.values))
    if bad.size:
        raise DataError(
            f"scorer {scorer.name}: image {bad[0]} of the batch ({prompts[bad[0]]!r}) got {scores.values[bad[0]]}; "
            "scores must be finite."
        )
    for name, detail in scores.details.items():
        if detail.shape != (size,) or not np.isfinite(detail).all():
            raise DataError(
                f"scorer {scorer.name}: detail {name!r} needs one finite value for each of {size} images, "
                f"got {detail.tolist()}"
            )
    return scores
