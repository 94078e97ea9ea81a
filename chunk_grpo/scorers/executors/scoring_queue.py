"""Queue of a server: it scores the batches of all clients, one call at a time."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from chunk_grpo.errors import TransientError
from chunk_grpo.scorers.base import ScoreBatch, Scorer, Scores, check_scores
from chunk_grpo.scorers.executors.messages import worker_for
from chunk_grpo.scorers.workers.worker_protocol import ready_message

_LOG = logging.getLogger(__name__)

_LEAVING = "the scoring server is shutting down; it did not score this batch"


@dataclass(frozen=True)
class _Job:
    batch: ScoreBatch
    answer: asyncio.Future[Scores]


class ScoringQueue:
    """Scores batches in order of arrival, in one thread because a model uses its device exclusively.

    All methods are for the event loop that runs `run`.

    Attributes:
        ready: The `ready` message; None until the scorer is checked.
        hangs: Set when a call exceeded its time limit. Its thread cannot be ended, so the process has to end.
    """

    def __init__(self, scorer: Scorer, merge: int = 1, batch_seconds: float | None = None) -> None:
        """Start nothing yet.

        Args:
            scorer: Scorer to use; `run` checks, calls and closes it.
            merge: Maximum number of images in one call that merges waiting batches; 1: no merging, so that rounding
                does not depend on other clients.
            batch_seconds: Time limit of a call; None: no limit.
        """
        self.ready: Mapping[str, Any] | None = None
        self.hangs = asyncio.Event()
        self._scorer, self._merge, self._limit = scorer, merge, batch_seconds
        self._start: float | None = None
        self._jobs: deque[_Job] = deque()
        self._changed = asyncio.Event()
        self._is_leaving = False

    async def score(self, batch: ScoreBatch) -> Scores:
        """Scores of a batch. Cancelling the call removes a batch that still waits.

        Raises:
            TransientError: The server shuts down.
        """
        if self._is_leaving:
            raise TransientError(_LEAVING)
        job = _Job(batch, asyncio.get_running_loop().create_future())
        self._jobs.append(job)
        self._changed.set()
        return await job.answer

    @property
    def scoring_seconds(self) -> float | None:
        """Seconds since the running call began; None between calls."""
        return None if self._start is None else time.monotonic() - self._start

    def leave(self) -> None:
        """Refuse the waiting batches, and let `run` end after the batch being scored."""
        self._is_leaving = True
        for job in self._jobs:
            if not job.answer.done():
                job.answer.set_exception(TransientError(_LEAVING))
        self._jobs.clear()
        self._changed.set()

    async def run(self) -> None:
        """Check the scorer, and score batches until `leave`.

        Raises:
            ConfigError: A package is missing.
            DataError: A file is missing.
        """
        with ThreadPoolExecutor(1) as thread:
            loop = asyncio.get_running_loop()
            try:
                self.ready = ready_message(await loop.run_in_executor(thread, worker_for, self._scorer))
                _LOG.info("ready: %s, version %s", self._scorer.name, self._scorer.version)
                while jobs := await self._next():
                    await self._score(jobs, thread)
            finally:
                await loop.run_in_executor(thread, self._scorer.close)

    async def _next(self) -> list[_Job]:
        """Jobs of the next call; empty if the server shuts down."""
        jobs: list[_Job] = []
        while not (jobs or self._is_leaving):
            self._changed.clear()
            while self._jobs and (not jobs or self._fits(jobs, self._jobs[0])):
                job = self._jobs.popleft()
                if not job.answer.cancelled():
                    jobs.append(job)
            if not jobs:
                await self._changed.wait()
        return jobs

    def _fits(self, jobs: Sequence[_Job], other: _Job) -> bool:
        size = sum(len(job.batch) for job in (*jobs, other))
        return size <= self._merge and jobs[0].batch.images.shape[1:] == other.batch.images.shape[1:]

    async def _score(self, jobs: Sequence[_Job], thread: ThreadPoolExecutor) -> None:
        start, whole = time.monotonic(), _joined([job.batch for job in jobs])
        self._start = start
        try:
            scores = await self._within_the_limit(whole, thread)
            if len(jobs) > 1:
                check_scores(self._scorer.name, scores, whole.prompts)  # else it could not be divided
        except Exception as error:  # the client raises it
            if (
                len(jobs) > 1 and not self.hangs.is_set()
            ):  # each alone: only the failing batches get the error
                for job in jobs:
                    await self._score([job], thread)
                return
            for job in jobs:
                if not job.answer.done():
                    job.answer.set_exception(error)
            return
        finally:
            self._start = None
        _LOG.info(
            "%d images in %.2f s, %d batches wait", len(whole), time.monotonic() - start, len(self._jobs)
        )
        first = 0
        for job in jobs:
            last = first + len(job.batch)
            if not job.answer.done():
                job.answer.set_result(scores if len(jobs) == 1 else scores.rows(first, last))
            first = last

    async def _within_the_limit(self, batch: ScoreBatch, thread: ThreadPoolExecutor) -> Scores:
        """Scores of a call.

        Raises:
            TransientError: The call exceeded the limit; `hangs` is set.
        """
        call = asyncio.get_running_loop().run_in_executor(thread, self._scorer.score, batch)
        try:
            return await asyncio.wait_for(asyncio.shield(call), self._limit)
        except TimeoutError as error:
            if call.done():  # the scorer's own error
                raise
            self.hangs.set()
            raise TransientError(
                f"the scorer {self._scorer.name} gave no answer within {self._limit:g} s (--batch-seconds) and still "
                "runs, so its server ends; start it again"
            ) from error


def _joined(batches: Sequence[ScoreBatch]) -> ScoreBatch:
    """Concatenate batches; groups of different batches stay distinct."""
    if len(batches) == 1:
        return batches[0]
    owners = [(index, group) for index, batch in enumerate(batches) for group in batch.groups]
    groups = {owner: number for number, owner in enumerate(dict.fromkeys(owners))}
    return ScoreBatch(
        np.concatenate([batch.images for batch in batches]),
        [prompt for batch in batches for prompt in batch.prompts],
        [record for batch in batches for record in batch.metadata],
        [groups[owner] for owner in owners],
    )
