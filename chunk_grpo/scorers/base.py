"""Interface of rewards and benchmarks: one number per image, and named details.

Shape letters: B images, H height, W width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chunk_grpo.config.scorer_settings import ScorerSettings
from chunk_grpo.errors import DataError

FloatArray: TypeAlias = NDArray[np.float64]
Pictures: TypeAlias = NDArray[np.uint8]
"""[B, H, W, 3], RGB."""

Need: TypeAlias = Literal["prompt", "metadata", "sources"]
"""Input of a scorer besides the image."""


@dataclass(frozen=True)
class ScoreBatch:
    """B images with their prompts, metadata and groups."""

    images: Pictures
    """uint8 [B, H, W, 3], RGB: the content of a PNG. Training and evaluation judge the same pixels."""
    prompts: Sequence[str]
    """B captions."""
    metadata: Sequence[Mapping[str, object]]
    """B parsed records of the prompts table's `metadata` column."""
    groups: Sequence[int]
    """B group numbers. Groupwise scorers compare images with the same number."""
    sources: Pictures | None = None
    """Pictures of which the images are edits, of the same shape; None: the prompts edit none."""

    def __len__(self) -> int:
        return len(self.prompts)

    def rows(self, rows: Sequence[int]) -> ScoreBatch:
        """The given rows of the batch, in the given order."""
        return ScoreBatch(
            self.images[list(rows)],
            [self.prompts[row] for row in rows],
            [self.metadata[row] for row in rows],
            [self.groups[row] for row in rows],
            None if self.sources is None else self.sources[list(rows)],
        )


@dataclass(frozen=True)
class Scores:
    """One value per image, and named details per image. Higher is better."""

    values: FloatArray
    """float64 [B]; NaN for a refused image."""
    details: Mapping[str, FloatArray] = field(default_factory=dict)
    """Name to float64 [B]; undefined for a refused image."""
    refused: Mapping[int, str] = field(default_factory=dict)
    """Row of each refused image to the reason."""


class Scorer(Protocol):
    """A reward or benchmark that scores images.

    The value of a pointwise scorer depends on the image alone. The value of a groupwise scorer depends on the images of
    its group, and a batch holds whole groups. Neither depends on the order of the images.
    """

    @property
    def settings(self) -> ScorerSettings:
        """The scorer's section of params.yaml."""
        ...

    @property
    def name(self) -> str:
        """Name of the measure and its model, such as clip/openai/clip-vit-large-patch14."""
        ...

    @property
    def version(self) -> int:
        """Version of the scoring code. It changes when the same settings could score the same image differently."""
        ...

    @property
    def needs(self) -> frozenset[Need]:
        """Inputs besides the images."""
        ...

    @property
    def groupwise(self) -> bool:
        """Whether the scorer compares the images of a group."""
        ...

    def check(self) -> None:
        """Check the packages, files and servers that scoring needs. Loads no model.

        Raises:
            ConfigError: A package is not installed; the message names the extra.
            DataError: A file is missing, or the server runs another scorer; the message names the fix.
            TransientError: A server does not answer.
        """
        ...

    def spec_hash(self) -> str:
        """Hash of version, settings and model files."""
        ...

    def score(self, batch: ScoreBatch) -> Scores:
        """Score a batch of any size.

        Raises:
            DataError: An input cannot be judged.
            TransientError: No answer; a retry may succeed.
        """
        ...

    def close(self) -> None:
        """Release memory, processes and connections. The scorer must not be used afterwards."""
        ...


def check_scores(name: str, scores: Scores, prompts: Sequence[str]) -> Scores:
    """Reject missing or non-finite scores: a failed score is an error, never a reward of 0.

    Refused images need no value. The caller decides whether they may be left out.

    Args:
        name: Name of the scorer, for messages.
        scores: Answer of the scorer.
        prompts: Prompts of the scored images.

    Raises:
        DataError: A value or a detail is missing, NaN or infinite.
    """
    size = len(prompts)
    images = f"{size} image" if size == 1 else f"{size} images"
    again = "Mend the scorer, and run the same command again."
    if scores.values.shape != (size,):
        found = f"an array of {list(scores.values.shape)}" if scores.values.ndim else "a single number"
        raise DataError(
            f"scorer {name}: needs one value for each of {images}, an array of [{size}], got {found}. {again}"
        )
    answered = np.ones(size, dtype=bool)
    answered[list(scores.refused)] = False
    bad = np.flatnonzero(~np.isfinite(scores.values) & answered)
    if bad.size:
        raise DataError(
            f"scorer {name}: image {bad[0]} of the batch ({prompts[bad[0]]!r}) got {scores.values[bad[0]]}; "
            f"scores must be finite. {again}"
        )
    for detail, values in scores.details.items():
        if values.shape != (size,) or not np.isfinite(values[answered]).all():
            raise DataError(
                f"scorer {name}: detail {detail!r} needs one finite value for each of {images}, "
                f"got {values.tolist()}. {again}"
            )
    return scores


def sources_of(key: str, batch: ScoreBatch) -> Pictures:
    """The pictures of which a batch's images are edits; DataError without any."""
    if batch.sources is None:
        raise DataError(
            f"scorers.{key}: judges the pictures of which images are edits, but these prompts edit none; set "
            "picture_field of the prompt files, or choose another scorer"
        )
    return batch.sources


def check_batch(batch: ScoreBatch) -> None:
    """Check that the parts of a batch match, before a model runs.

    Raises:
        ValueError: The images have a wrong shape or type, or the numbers of images, prompts, records and groups differ.
    """
    if batch.images.dtype != np.uint8 or batch.images.ndim != 4 or batch.images.shape[-1] != 3:
        raise ValueError(f"images: must be uint8 [B, H, W, 3], got {batch.images.dtype} {batch.images.shape}")
    edited = batch.sources
    if edited is not None and (edited.dtype != np.uint8 or edited.shape != batch.images.shape):
        raise ValueError(f"sources: must be uint8 {batch.images.shape}, got {edited.dtype} {edited.shape}")
    sizes = (len(batch.images), len(batch.prompts), len(batch.metadata), len(batch.groups))
    if len(set(sizes)) != 1:
        raise ValueError(f"images, prompts, metadata and groups: must be of one length, got {sizes}")
