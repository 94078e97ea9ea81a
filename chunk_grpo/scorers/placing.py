"""Scorers where params.yaml places them: in this process, in another, or at a server."""

from __future__ import annotations

from chunk_grpo.config.scorers import AnyExecutor, AnyScorer, InProcess
from chunk_grpo.errors import ConfigError
from chunk_grpo.scorers.base import Scorer
from chunk_grpo.scorers.registry import load, make_scorer

ELSEWHERE: dict[str, str] = {
    "subprocess": "chunk_grpo.scorers.executors.subprocess_scorer:SubprocessScorer",
    "http": "chunk_grpo.scorers.executors.http_scorer:HttpScorer",
}
"""Kind of executor to the class. Imported by name, because where a scorer runs moves no result: a change of their code
trains and scores nothing anew."""


def place_scorer(key: str, settings: AnyScorer, executor: AnyExecutor | None) -> Scorer:
    """The scorer of a section of params.yaml where `executors` places it; nothing is loaded, started or reached yet.

    Args:
        key: Its name in params.yaml, for messages.
        settings: Its section.
        executor: Its section of `executors`; None: in this process.

    Raises:
        ConfigError: A package is missing, or an external scorer cannot be found.
    """
    if executor is None:
        return make_scorer(key, settings)
    if isinstance(executor, InProcess):
        return make_scorer(key, settings, executor.device)
    try:
        placed: Scorer = load(ELSEWHERE[executor.kind])(key, settings, executor)
    except ImportError as error:
        raise ConfigError(
            f"executors.{key}: kind {executor.kind} needs a package that is not installed ({error}); "
            'pip install "chunk-grpo[serving]"'
        ) from error
    return placed
