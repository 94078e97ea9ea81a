"""Places scorers by the `executors` section: in this process, in a subprocess, or at a server."""

from __future__ import annotations

from collections.abc import Mapping
from pkgutil import resolve_name

from chunk_grpo.config.scorers import AnyExecutor, AnyScorer, ExternalScorer, InProcess, InSubprocess
from chunk_grpo.errors import ConfigError, DataError, install_command
from chunk_grpo.scorers.base import Scorer
from chunk_grpo.scorers.running.registry import make_scorer
from chunk_grpo.scorers.running.retry import Limited
from chunk_grpo.scorers.running.spec import ScorerSpec, require_same

ELSEWHERE: dict[str, str] = {
    "subprocess": "chunk_grpo.scorers.executors.subprocess_scorer:SubprocessScorer",
    "http": "chunk_grpo.scorers.executors.http_scorer:HttpScorer",
}
"""Kind of executor to class. Imported by name, because where a scorer runs changes no result: a change of this code
must not rerun training or scoring."""


def place_scorer(key: str, settings: AnyScorer, executor: AnyExecutor | None) -> Scorer:
    """Make a scorer where its section of `executors` places it; None: in this process. Starts and contacts nothing yet.

    ConfigError if a package is missing, an external scorer cannot be found, or its executor sets a device.
    """
    if executor is None:
        executor = InProcess(kind="in-process", device=None)
    _check_device(key, settings, executor)
    if isinstance(executor, InProcess):
        scorer = make_scorer(key, settings, executor.device)
        limit = executor.timeout_seconds
        return scorer if limit is None else Limited(key, scorer, limit)
    try:
        placed: Scorer = resolve_name(ELSEWHERE[executor.kind])(key, settings, executor)
    except ImportError as error:
        raise ConfigError(
            f"executors.{key}: kind {executor.kind} needs a package that is not installed ({error}); "
            f"{install_command('serving')}"
        ) from error
    return placed


def place_checked(spec: ScorerSpec, scorers: Mapping[str, AnyScorer], executors: Mapping[str, AnyExecutor]) -> Scorer:
    """Make the scorer of a spec of check_scorers as params.yaml defines it. Contacts its server or starts its process.

    DataError if it differs from the one that was checked; a ConfigError is that of `place_scorer`.
    """
    if spec.key not in scorers:
        raise DataError(f"scorers.{spec.key}: was checked, but is not in params.yaml; run `dvc repro`")
    scorer = place_scorer(spec.key, scorers[spec.key], executors.get(spec.key))
    try:
        require_same(spec, scorer)
    except BaseException:
        scorer.close()
        raise
    return scorer


def _check_device(key: str, settings: AnyScorer, executor: AnyExecutor) -> None:
    """Reject `device` where no executor uses it. Custom worker scripts receive it."""
    told_it = isinstance(executor, InSubprocess) and executor.script is not None
    device = executor.device if isinstance(executor, (InProcess, InSubprocess)) else None
    if isinstance(settings, ExternalScorer) and device is not None and not told_it:
        raise ConfigError(
            f"executors.{key}.device: must be null, got {device!r}: an external scorer chooses its device. Set it in "
            f"scorers.{key}.options, if {settings.source} takes a device."
        )
