"""What every reward and benchmark offers: one number per image, and named details.

Shape letters: B images, H height, W width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chunk_grpo.config.scorers import ScorerSettings
from chunk_grpo.errors import DataError

FloatArray: TypeAlias = NDArray[np.float64]
Pictures: TypeAlias = NDArray[np.uint8]
"""[B, H, W, 3], RGB."""

Need: TypeAlias = Literal["prompt", "metadata"]
"""What a scorer reads besides the image."""


@dataclass(frozen=True)
class ScoreBatch:
    """B images with what is known of them.

    Attributes:
        images: uint8 [B, H, W, 3], RGB: what a PNG holds, so that training and evaluation judge the same picture.
        prompts: B captions.
        metadata: B records of the prompts table's `metadata` column, parsed.
        groups: B numbers; images of one prompt that are to be compared share theirs. Groupwise scorers read it.
    """

    images: Pictures
    prompts: Sequence[str]
    metadata: Sequence[Mapping[str, object]]
    groups: Sequence[int]

    def __len__(self) -> int:
        return len(self.prompts)

    def rows(self, rows: Sequence[int]) -> ScoreBatch:
        """The images with these numbers, in this order."""
        return ScoreBatch(
            self.images[list(rows)],
            [self.prompts[row] for row in rows],
            [self.metadata[row] for row in rows],
            [self.groups[row] for row in rows],
        )


@dataclass(frozen=True)
class Scores:
    """One value per image, higher is better, and named details per image.

    Attributes:
        values: float64 [B]; NaN for a refused image.
        details: Name to float64 [B]; of a refused image anything.
        refused: Row of each image that the scorer would not judge, to the reason.
    """

    values: FloatArray
    details: Mapping[str, FloatArray] = field(default_factory=dict)
    refused: Mapping[int, str] = field(default_factory=dict)

    def rows(self, first: int, last: int) -> Scores:
        """Those of the images from `first` up to, not with, `last`."""
        return Scores(
            self.values[first:last],
            {name: values[first:last] for name, values in self.details.items()},
            {row - first: reason for row, reason in self.refused.items() if first <= row < last},
        )


class Scorer(Protocol):
    """What is measured of an image.

    A pointwise scorer's value of an image does not depend on the other images of the batch; a groupwise one's depends
    on those of its group alone, and a batch holds whole groups. Neither depends on the order.
    """

    @property
    def settings(self) -> ScorerSettings:
        """Its section of params.yaml."""
        ...

    @property
    def name(self) -> str:
        """What is measured, with the model that does it, such as clip/openai/clip-vit-large-patch14."""
        ...

    @property
    def version(self) -> int:
        """Raised whenever the same settings could score the same image differently."""
        ...

    @property
    def needs(self) -> frozenset[Need]:
        """What it reads besides the images."""
        ...

    @property
    def groupwise(self) -> bool:
        """Whether it compares the images of a group."""
        ...

    def check(self) -> None:
        """Find everything that scoring needs (packages, files, a server) and load no model.

        Raises:
            ConfigError: A package is not installed; names the extra.
            DataError: A file is missing or a server is another one; says what to do.
            TransientError: A server does not answer.
        """
        ...

    def spec_hash(self) -> str:
        """Identifies what is measured: version, settings and model files."""
        ...

    def score(self, batch: ScoreBatch) -> Scores:
        """Score a batch of any size.

        Raises:
            DataError: An input cannot be judged.
            TransientError: No answer; another try may get one.
        """
        ...

    def close(self) -> None:
        """Give back memory, processes and connections; the scorer is not used after it."""
        ...


def check_scores(name: str, scores: Scores, prompts: Sequence[str]) -> Scores:
    """Refuse short or non-finite answers: a failed score is an error, never a reward of 0.

    Images that the scorer refused need no number; whether they may be left out is for the caller to say.

    Args:
        name: The scorer's, for messages.
        scores: Its answer.
        prompts: Of the images that were scored.

    Raises:
        DataError: A value or a detail is missing, NaN or infinite.
    """
    size = len(prompts)
    if scores.values.shape != (size,):
        raise DataError(
            f"scorer {name}: needs one value for each of {size} images, got {scores.values.shape}"
        )
    answered = np.ones(size, dtype=bool)
    answered[list(scores.refused)] = False
    bad = np.flatnonzero(~np.isfinite(scores.values) & answered)
    if bad.size:
        raise DataError(
            f"scorer {name}: image {bad[0]} of the batch ({prompts[bad[0]]!r}) got {scores.values[bad[0]]}; "
            "scores must be finite."
        )
    for detail, values in scores.details.items():
        if values.shape != (size,) or not np.isfinite(values[answered]).all():
            raise DataError(
                f"scorer {name}: detail {detail!r} needs one finite value for each of {size} images, "
                f"got {values.tolist()}"
            )
    return scores


def check_batch(batch: ScoreBatch) -> None:
    """Refuse a batch whose parts do not fit together, before a model sees it.

    Raises:
        ValueError: Another shape or type, or another number of prompts, records or groups than of images.
    """
    if batch.images.dtype != np.uint8 or batch.images.ndim != 4 or batch.images.shape[-1] != 3:
        raise ValueError(f"images: must be uint8 [B, H, W, 3], got {batch.images.dtype} {batch.images.shape}")
    sizes = (len(batch.images), len(batch.prompts), len(batch.metadata), len(batch.groups))
    if len(set(sizes)) != 1:
        raise ValueError(f"images, prompts, metadata and groups: must be of one length, got {sizes}")
