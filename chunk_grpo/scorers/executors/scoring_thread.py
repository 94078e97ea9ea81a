"""Thread that scores the batches of a server's clients one after the other."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from chunk_grpo.errors import TransientError
from chunk_grpo.scorers.base import ScoreBatch, Scorer, Scores, check_scores
from chunk_grpo.scorers.executors.wire import decode_batch, worker_for
from chunk_grpo.scorers.workers import lines

_LOG = logging.getLogger(__name__)

_LEAVING = "the scoring server is shutting down; it did not score this batch"


@dataclass(frozen=True)
class _Job:
    batch: ScoreBatch
    scores: Future[Scores] = field(default_factory=Future)


class ScoringThread:
    """Scores batches in order of arrival, in one thread because a model uses its device exclusively.

    Attributes:
        ready: The `ready` message; None until the scorer is checked.
        failure: Error that ended the thread; None if there was none.
    """

    def __init__(self, scorer: Scorer, merge: int = 1) -> None:
        """Start no thread yet.

        Args:
            scorer: Scorer to use; the thread checks, calls and closes it.
            merge: Maximum number of images in one call that merges waiting batches; 1: no merging, so that rounding
                does not depend on other clients.
        """
        self.ready: Mapping[str, Any] | None = None
        self.failure: Exception | None = None
        self._scorer, self._merge = scorer, merge
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._leaving = False
        self._thread: threading.Thread | None = None

    def start(self, on_failure: Callable[[], object]) -> None:
        """Check the scorer, then score.

        Args:
            on_failure: Called in the thread if the check of the scorer fails.
        """
        # A daemon, so that a second SIGTERM ends a process with a hanging scorer.
        self._thread = threading.Thread(target=self._run, args=(on_failure,), name="scoring", daemon=True)
        self._thread.start()

    def submit(self, batch: lines.Batch) -> Future[Scores]:
        """Queue a batch. Cancelling the future before scoring starts removes the batch from the queue."""
        job = _Job(decode_batch(batch))
        with self._changed:
            if self._leaving:
                job.scores.set_exception(TransientError(_LEAVING))
            else:
                self._jobs.append(job)
                self._changed.notify()
        return job.scores

    def leave(self) -> None:
        """Finish the batch being scored, refuse the waiting batches, and end the thread."""
        with self._changed:
            self._leaving = True
            waiting = list(self._jobs)
            self._jobs.clear()
            self._changed.notify()
        for job in waiting:
            if job.scores.set_running_or_notify_cancel():
                job.scores.set_exception(TransientError(_LEAVING))

    def join(self) -> None:
        """Wait until the thread has ended."""
        if self._thread is not None:
            self._thread.join()

    def _run(self, on_failure: Callable[[], object]) -> None:
        try:
            self.ready = lines.ready_message(worker_for(self._scorer))
            _LOG.info("ready: %s, version %s", self._scorer.name, self._scorer.version)
            while jobs := self._next():
                self._score(jobs)
        except Exception as error:  # the main thread raises it
            self.failure = error
            on_failure()
        finally:
            self._scorer.close()

    def _next(self) -> list[_Job]:
        """Jobs of the next call; empty if the thread must end."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._jobs or self._leaving)
                jobs: list[_Job] = []
                while self._jobs and (not jobs or self._fits(jobs, self._jobs[0])):
                    job = self._jobs.popleft()
                    if job.scores.set_running_or_notify_cancel():
                        jobs.append(job)
                if jobs or self._leaving:
                    return jobs

    def _fits(self, jobs: Sequence[_Job], other: _Job) -> bool:
        size = sum(len(job.batch) for job in (*jobs, other))
        return size <= self._merge and jobs[0].batch.images.shape[1:] == other.batch.images.shape[1:]

    def _score(self, jobs: Sequence[_Job]) -> None:
        start = time.monotonic()
        try:
            whole = jobs[0].batch if len(jobs) == 1 else _joined([job.batch for job in jobs])
            scores = self._scorer.score(whole)
            parts = [scores] if len(jobs) == 1 else _parts(self._scorer.name, scores, jobs, whole)
        except (Exception, SystemExit) as error:  # the client raises it
            if len(jobs) == 1:
                leaves = isinstance(error, SystemExit)
                jobs[0].scores.set_exception(RuntimeError(f"sys.exit({error})") if leaves else error)
                return
            for job in jobs:  # score each alone: only the failing batches get the error
                self._score([job])
            return
        _LOG.info(
            "%d images in %.2f s, %d batches wait", len(whole), time.monotonic() - start, len(self._jobs)
        )
        for job, part in zip(jobs, parts, strict=True):
            job.scores.set_result(part)


def _joined(batches: Sequence[ScoreBatch]) -> ScoreBatch:
    """Concatenate batches; groups of different batches stay distinct."""
    groups = {
        key: number
        for number, key in enumerate(
            dict.fromkeys((index, group) for index, batch in enumerate(batches) for group in batch.groups)
        )
    }
    return ScoreBatch(
        np.concatenate([batch.images for batch in batches]),
        [prompt for batch in batches for prompt in batch.prompts],
        [record for batch in batches for record in batch.metadata],
        [groups[index, group] for index, batch in enumerate(batches) for group in batch.groups],
    )


def _parts(name: str, scores: Scores, jobs: Sequence[_Job], whole: ScoreBatch) -> list[Scores]:
    check_scores(name, scores, whole.prompts)
    parts, first = [], 0
    for job in jobs:
        parts.append(scores.rows(first, first + len(job.batch)))
        first += len(job.batch)
    return parts
