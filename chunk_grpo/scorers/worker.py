"""`python -m chunk_grpo.scorers.worker`: a scorer of this package in a process of its own.

A stage starts it (`executors: {NAME: {kind: subprocess}}`).
"""

from __future__ import annotations

from chunk_grpo.scorers.executors.messages import read_settings, worker_for
from chunk_grpo.scorers.running.registry import make_scorer
from chunk_grpo.scorers.workers import worker_protocol


def open_worker(start: worker_protocol.Start) -> worker_protocol.Worker:
    """Make and check the scorer of a start line."""
    return worker_for(make_scorer(start.key, read_settings(start), start.device))


if __name__ == "__main__":
    worker_protocol.serve(open_worker)
