"""Work that the processes of a stage share, one process per GPU. Training has processes of its own kind.

The launcher sets the environment of torchrun. Without it there is one process, and torch is not imported.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from itertools import islice
from typing import TypeVar

from chunk_grpo.errors import ChunkGrpoError, TransientError

Job = TypeVar("Job")
Result = TypeVar("Result")

_PATIENCE = timedelta(days=7)
"""Timeout of a process that waits for another one's job. If that one dies, its connections close."""


def exhaust(results: Iterable[object]) -> None:
    """Perform all jobs of a generator that yields nothing here."""
    for _ in results:
        pass


class Workers:
    """The processes of a stage. All must call `in_order` with equal jobs."""

    def __init__(self) -> None:
        """Join the other processes, if there are any, and select this process's GPU: call before loading a model."""
        self._index, self._count = (
            int(os.environ.get(name, n)) for name, n in (("RANK", 0), ("WORLD_SIZE", 1))
        )
        if self._count > 1:
            import torch  # here: slow to import
            from torch import distributed

            if torch.cuda.is_available():
                torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
            if not distributed.is_initialized():
                distributed.init_process_group("gloo", timeout=_PATIENCE)

    @property
    def share(self) -> tuple[int, int]:
        """(k, N): this process performs every N-th job from number k."""
        return self._index, self._count

    @property
    def is_main(self) -> bool:
        """Whether this process gets the results and writes the files."""
        return self._index == 0

    def in_order(self, jobs: Iterable[Job], work: Callable[[Job], Result]) -> Iterator[Result]:
        """Perform all jobs; yield the results in order in the main process, and none in the others.

        Each process performs every N-th of N processes' jobs. At most N results wait.

        Args:
            jobs: Equal in all processes.
            work: Function with a result that can be pickled, on the CPU.

        Raises:
            ChunkGrpoError: A job failed; all processes raise the error of the first such job.
            TransientError: Another process has ended.
        """
        if self._count == 1:
            yield from map(work, jobs)
            return
        remaining = iter(jobs)
        while round_of_jobs := list(islice(remaining, self._count)):
            own: list[Result | ChunkGrpoError] = []
            try:
                own = [work(job) for job in round_of_jobs[self._index : self._index + 1]]
            except ChunkGrpoError as error:
                own = [error]
            results = self._gathered(own)
            for result in results:
                if isinstance(result, ChunkGrpoError):
                    raise result
            if self.is_main:
                yield from results  # type: ignore[misc]  # the errors are gone

    def _gathered(self, own: list[Result | ChunkGrpoError]) -> list[Result | ChunkGrpoError]:
        from torch import distributed

        everybody: list[list[Result | ChunkGrpoError]] = [[] for _ in range(self._count)]
        try:
            distributed.all_gather_object(everybody, own)
        except RuntimeError as error:
            raise TransientError("another process has ended") from error
        return [result for part in everybody for result in part]
