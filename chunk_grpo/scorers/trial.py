"""A trial of a scorer before long work: made-up images, with prompts and metadata of the run.

Shape letters: B images, H height, W width.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from chunk_grpo.errors import DataError
from chunk_grpo.scorers.base import Pictures, ScoreBatch, Scorer, check_scores
from chunk_grpo.scorers.running.retry import score_with_retries

_LOG = logging.getLogger(__name__)

PATCHES = 6
"""Patches of colour along a side of a made-up image."""


@dataclass(frozen=True)
class Sample:
    """Prompts of one split, whose images have one shape."""

    split: str
    """Name of the split."""
    rows: Sequence[Mapping[str, str]]
    """Rows of prompts/1, at least one."""
    height: int
    """Height of the split's images, in pixels."""
    width: int
    """Width of the split's images, in pixels."""
    sources: Pictures | None = None
    """Pictures that the rows edit, of the images' size; None: they edit none."""

    def batch(self, copies: int) -> ScoreBatch:
        """A group of `copies` made-up images for each prompt."""
        rows = [row for row in self.rows for _ in range(copies)]
        return ScoreBatch(
            images=made_up_pictures(len(rows), self.height, self.width),
            prompts=[row["prompt"] for row in rows],
            metadata=[json.loads(row["metadata"]) for row in rows],
            groups=[number // copies for number in range(len(rows))],
            sources=None if self.sources is None else self.sources.repeat(copies, axis=0),
        )


@dataclass(frozen=True)
class TrialTimes:
    """Seconds of a trial."""

    loading: float
    """Seconds of the first call, without those of its images."""
    image: float | None
    """Seconds an image in later calls; None if the trial had one call."""


def spread(rows: Sequence[Mapping[str, str]], count: int) -> list[Mapping[str, str]]:
    """At most `count` rows at equal distances: files of prompts are often sorted by kind."""
    count = min(count, len(rows))
    return [rows[len(rows) * number // count] for number in range(count)]


def made_up_pictures(count: int, height: int, width: int) -> Pictures:
    """Soft patches of random colours, uint8 [count, height, width, 3]. A larger count begins with the same images."""
    random = np.random.default_rng(0)
    patches = random.integers(0, 256, (count, PATCHES, PATCHES, 3), dtype=np.uint8)
    large = [Image.fromarray(each).resize((width, height), Image.Resampling.BICUBIC) for each in patches]
    return np.stack([np.asarray(image) for image in large])


def try_scorer(key: str, scorer: Scorer, samples: Sequence[Sample], images_per_prompt: int) -> TrialTimes:
    """Score made-up images of all samples; the images of the first prompt alone, to time loading.

    A groupwise scorer gets `images_per_prompt` images of a prompt, others one. A refused image is reported. It ends the
    trial only if no image was judged, since a judge may refuse what shows nothing.

    Raises:
        DataError: A prompt cannot be judged, a score is missing or not finite, or every image is refused.
        TransientError: The scorer does not answer.
    """
    copies = images_per_prompt if scorer.groupwise else 1
    batches = [(sample.split, sample.batch(copies)) for sample in samples]
    split, batch = batches[0]
    calls = [(split, batch.rows(range(copies))), (split, batch.rows(range(copies, len(batch)))), *batches[1:]]
    calls = [(split, batch) for split, batch in calls if len(batch)]
    refused: list[str] = []
    seconds: list[float] = []
    for split, batch in calls:
        start = time.perf_counter()
        refused += _refusals(key, scorer, split, batch)
        seconds.append(time.perf_counter() - start)
    count = sum(len(batch) for _, batch in calls)
    if refused:
        message = f"scorer {key}: refuses {len(refused)} of {count} images of the trial, such as {refused[0]}"
        if len(refused) == count:
            raise DataError(
                f"{message}. Mend the scorer, or set trial.images: 0 if it can only judge the model's own images."
            )
        _LOG.warning("%s", message)
    if len(calls) == 1:
        return TrialTimes(seconds[0], None)
    image = sum(seconds[1:]) / (count - copies)
    return TrialTimes(max(0.0, seconds[0] - copies * image), image)


def _refusals(key: str, scorer: Scorer, split: str, batch: ScoreBatch) -> list[str]:
    """Score a batch; prompt and reason of each refused image. The log names the prompts of a failure."""
    try:
        scores = check_scores(key, score_with_retries(key, scorer, batch), batch.prompts)
    except Exception:
        prompts = list(map(repr, dict.fromkeys(batch.prompts)))
        which = f"prompt {prompts[0]}" if len(prompts) == 1 else f"prompts {', '.join(prompts)}"
        _LOG.error("scorer %s: failed in its trial, in the split %s, with the %s", key, split, which)
        raise
    return [f"that of {batch.prompts[row]!r}: {reason}" for row, reason in scores.refused.items()]
