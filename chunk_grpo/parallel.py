"""Work that the processes of a stage share, one process per GPU. Training has its own (`training.processes`).

The launcher sets the environment of torchrun. Without it there is one process, and torch is not imported.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeVar

from chunk_grpo.errors import ChunkGrpoError, TransientError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Job = TypeVar("Job")
Result = TypeVar("Result")

_PATIENCE = timedelta(days=7)
"""Timeout of a process that waits for another one's job. If that one dies, its connections close."""


def exhaust(results: Iterable[object]) -> None:
    """Perform all jobs of a generator that yields nothing here."""
    for _ in results:
        pass


def results_of_all(action: Callable[[], Result], count: int, group: ProcessGroup | None = None) -> list[Result]:
    """Results of `action` in all `count` processes, in order of rank. All must call.

    Args:
        action: Function with a result that can be pickled.
        count: Number of processes; with one nothing is sent.
        group: Processes; None: the default group.

    Raises:
        ChunkGrpoError: `action` failed in a process; all processes raise the error of the lowest rank.
        TransientError: Another process has ended.
    """
    if count == 1:
        return [action()]
    from torch import distributed  # here: slow to import

    own: tuple[Result | None, ChunkGrpoError | None]
    try:
        own = action(), None
    except ChunkGrpoError as error:
        own = None, error
    everybody: list[Any] = [None] * count
    try:
        distributed.all_gather_object(everybody, own, group=group)
    except RuntimeError as error:
        raise TransientError("another process has ended") from error
    for number, (_, failure) in enumerate(everybody):
        if failure is not None:
            failure.process = number if failure.process is None else failure.process
            raise failure
    return [result for result, _ in everybody]


class Workers:
    """The processes of a stage. All must call `in_order` with equal jobs."""

    def __init__(self) -> None:
        """Join the other processes, if there are any, and select this process's GPU: call before loading a model."""
        self._index, self._count = (int(os.environ.get(name, n)) for name, n in (("RANK", 0), ("WORLD_SIZE", 1)))
        if self._count > 1:
            import torch  # here: slow to import
            from torch import distributed

            if torch.cuda.is_available():
                torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
            if not distributed.is_initialized():
                distributed.init_process_group("gloo", timeout=_PATIENCE)

    @classmethod
    def alone(cls) -> Workers:
        """This process by itself, whatever the environment says."""
        found = cls.__new__(cls)
        found._index, found._count = 0, 1
        return found

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
            own = round_of_jobs[self._index : self._index + 1]
            results = results_of_all(lambda own=own: [work(job) for job in own], self._count)  # type: ignore[misc]
            if self.is_main:
                yield from chain.from_iterable(results)
