"""Makes scorers from sections of params.yaml."""

from __future__ import annotations

from pkgutil import resolve_name

from chunk_grpo.config.scorers import AnyScorer, ExternalScorer
from chunk_grpo.errors import ConfigError, install_command
from chunk_grpo.scorers.base import Scorer
from chunk_grpo.scorers.running.external import External


def make_scorer(key: str, settings: AnyScorer, device: str | None = None) -> Scorer:
    """Make a scorer in this process. Loads no model yet.

    Args:
        key: Name of the scorer in params.yaml, for messages.
        settings: The scorer's section.
        device: Device such as cuda:1; None: the first GPU, else the CPU.

    Raises:
        ConfigError: A package is missing, or an external scorer cannot be found.
    """
    if isinstance(settings, ExternalScorer):
        return External(key, settings)
    try:
        scorer: Scorer = resolve_name(settings.SCORER)(key, settings, device)
    except ImportError as error:
        raise ConfigError(
            f"scorers.{key}: kind {settings.kind} needs a package that is not installed ({error}); "
            f"{install_command(settings.EXTRA)}"
        ) from error
    return scorer
