"""Where a scorer runs: in this process, in one of its own, or at a server."""

from __future__ import annotations

from chunk_grpo.config.scorers import AnyExecutor, AnyScorer, InProcess
from chunk_grpo.scorers.base import Scorer
from chunk_grpo.scorers.registry import make_scorer


def place_scorer(key: str, settings: AnyScorer, executor: AnyExecutor | None) -> Scorer:
    """The scorer of a section of params.yaml, where `executor` says.

    Args:
        key: Its name in params.yaml.
        settings: Its section.
        executor: The section of `executors`; None: in this process.

    Raises:
        ConfigError: A package is missing, or an external scorer cannot be found.
    """
    if executor is None or isinstance(executor, InProcess):
        return make_scorer(key, settings, executor.device if executor else None)
    raise NotImplementedError(executor.kind)
