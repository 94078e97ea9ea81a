"""Scores of sampled images, and how processes wait for them.

A scorer may be slow or away in one process only. All processes then learn of it together, so that none is left in a
collective, and the training can save what it has sampled.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chunk_grpo.config import TrainParams
from chunk_grpo.errors import TransientError
from chunk_grpo.families.base import Family
from chunk_grpo.families.prompts import PromptSet
from chunk_grpo.image_files import as_pictures
from chunk_grpo.scorers.base import ScoreBatch
from chunk_grpo.scorers.reward import Reward
from chunk_grpo.scorers.running.retry import Background, waited
from chunk_grpo.training.stopping import GivenUpError, seconds_to_end

Result = TypeVar("Result")

_LOOK_SECONDS = 0.5
"""Interval between looks at the stop request in `Waits.pause`."""


class UnscoredError(TransientError):
    """A scorer of this or another process was away for too long."""


def _of_one(action: Callable[[], bool]) -> list[bool]:
    return [action()]


class Waits:
    """How a process waits for its scores: a stop request ends the wait, and all processes end it alike."""

    def __init__(
        self,
        is_stopping: Callable[[], bool] = lambda: False,
        by_all: Callable[[Callable[[], bool]], list[bool]] = _of_one,
    ) -> None:
        """Wait alone, unless the processes are given.

        Args:
            is_stopping: Whether this process received a stop request; it need not hold in all processes.
            by_all: `Processes.by_all`.
        """
        self._is_stopping, self._by_all = is_stopping, by_all

    def pause(self, answer: Future[Any]) -> None:
        """Wait until a call has ended, or a stop is requested. The call's error is left to `together`."""
        while not wait([answer], _LOOK_SECONDS).done and not self._is_stopping():
            pass

    def check(self) -> None:
        """Raise GivenUpError if this process received a stop request. Only inside `together`."""
        if self._is_stopping():
            raise GivenUpError

    def together(self, action: Callable[[], Result]) -> Result:
        """Result of a call that waits for scores, once the other processes have theirs. All must call.

        Raises:
            UnscoredError: The call raised a TransientError in a process.
            GivenUpError: It raised GivenUpError in a process, and no other error in any.
            ChunkGrpoError: It failed in a process; all processes raise the error of the lowest rank.
            TransientError: Another process has ended.
        """
        found: list[Result] = []

        def is_given_up() -> bool:
            try:
                found.append(action())
            except GivenUpError:
                return True
            except TransientError as error:
                raise UnscoredError(str(error)) from error
            return False

        if any(self._by_all(is_given_up)):
            raise GivenUpError
        return found[0]


class Judge:
    """Decodes and scores batches in order.

    Always uses a thread of its own, because a scorer that hangs must not keep the process from stopping. With
    `reward_in_background` the caller can sample the next batch meanwhile; otherwise `submit` waits for the scores.

    Attributes:
        count: Number of rows so far.
        seconds: Time that decoding and scoring took.
    """

    def __init__(self, family: Family, reward: Reward, settings: TrainParams, waits: Waits) -> None:
        """Begin without a batch.

        Args:
            family: Decoder.
            reward: Scorers.
            settings: `train` section of params.yaml.
            waits: How the process waits.
        """
        self._family, self._reward, self._waits = family, reward, waits
        self._is_ahead, self._decoded_together = settings.reward_in_background, settings.micro_batch_size
        self._thread = Background("reward")
        self._answers: list[Future[dict[str, NDArray[np.float64]]]] = []
        self._failure: BaseException | None = None
        self.count, self.seconds = 0, 0.0

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        for answer in self._answers:
            answer.cancel()
        self._thread.end(seconds_to_end(error))

    def submit(self, latents: Sequence[Tensor], rows: PromptSet) -> None:
        """Submit the next batch. Errors are raised by `scores`: they may be of this process alone.

        Args:
            latents: Final latents of V images of each row, V times [B, L, D]; each B images are scored together.
            rows: Prompt of each row, B rows.
        """
        self.count += len(rows)
        self._answers.append(self._thread.submit(self._score, latents, rows))
        if not self._is_ahead:
            self._waits.pause(self._answers[-1])

    def scores(self) -> dict[str, NDArray[np.float64]]:
        """Values [B, V] of each scorer over all batches, in order.

        Raises:
            UnscoredError: A scorer was away for too long, in this process or another.
            GivenUpError: A stop was requested.
            ChunkGrpoError: A scorer failed in this process or another.
        """
        return self._waits.together(self._own_scores)

    def _own_scores(self) -> dict[str, NDArray[np.float64]]:
        batches = [waited(answer, self._waits.check) for answer in self._answers]
        return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}

    def _score(self, latents: Sequence[Tensor], rows: PromptSet) -> dict[str, NDArray[np.float64]]:
        if self._failure is not None:  # the scorer was waited for long enough
            raise self._failure
        start = time.perf_counter()
        try:
            each = [score_latents(self._family, one, rows, self._reward, self._decoded_together) for one in latents]
        except BaseException as error:
            self._failure = error
            raise
        self.seconds += time.perf_counter() - start
        return {name: np.stack([scores[name] for scores in each], axis=1) for name in each[0]}  # [B, V]


def score_latents(
    family: Family, latents: Tensor, rows: PromptSet, reward: Reward, batch_size: int
) -> dict[str, NDArray[np.float64]]:
    """Decode final latents and score the images: values [B] by scorer.

    Args:
        family: Decoder.
        latents: Final latents [B, L, D].
        rows: Prompt of each image, B rows.
        reward: Scorers.
        batch_size: Images that are decoded together.
    """
    images = torch.cat([family.decode(part) for part in latents.split(batch_size)]).cpu().numpy()  # [B, 3, H, W]
    sources = rows.sources(*images.shape[2:])
    return reward.scores(ScoreBatch(as_pictures(images), rows.texts, rows.metadata, rows.groups(), sources))
