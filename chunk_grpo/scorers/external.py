"""Scorers from outside this package: a function, or a class, that params.yaml names."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

import numpy as np

from chunk_grpo.config.scorers import ExternalScorer
from chunk_grpo.errors import ConfigError
from chunk_grpo.scorers.base import Need, ScoreBatch, Scores, check_batch
from chunk_grpo.scorers.configured import in_batches
from chunk_grpo.scorers.identity import spec_hash

ENTRY_POINTS = "chunk_grpo.scorers"
"""Group of entry points by which an installed package offers scorers."""


class External:
    """A function or a class of the user's as a scorer, with the version that params.yaml gives it.

    A function is called as `function(images, prompts, metadata, **options)` and returns B numbers, or a pair of them
    and a mapping of named details. A class is made with `**options` and has such a function as its method `score`; it
    may have `close()`, and `groupwise = True` if it compares the images of a prompt; it then gets `groups` as a fourth
    argument. It is made at the first use, so that finding it loads no model.
    """

    needs: frozenset[Need] = frozenset({"prompt", "metadata"})

    def __init__(self, key: str, settings: ExternalScorer) -> None:
        """Find it.

        Args:
            key: Its name in params.yaml.
            settings: Its section.

        Raises:
            ConfigError: There is no such thing, or importing it fails.
        """
        self.key, self.settings = key, settings
        self._source = find_source(key, settings.source)
        self._instance: Any = None

    @property
    def name(self) -> str:
        """The key in params.yaml."""
        return self.key

    @property
    def version(self) -> int:
        """As params.yaml says."""
        return self.settings.version

    @property
    def groupwise(self) -> bool:
        """As the class says; a function is pointwise."""
        return bool(getattr(self._source, "groupwise", False))

    def check(self) -> None:
        """It was found when this was made."""

    def spec_hash(self) -> str:
        """Of source, version and options."""
        return spec_hash(self.key, self.version, self.settings, {})

    def score(self, batch: ScoreBatch) -> Scores:
        """Call it with `batch_size` images at a time, or, if it is groupwise, with all."""
        check_batch(batch)
        if self.groupwise:
            return self._call(batch)
        return in_batches(batch, self.settings.batch_size, self._call)

    def close(self) -> None:
        """Close the instance, if it can be closed."""
        if hasattr(self._instance, "close"):
            self._instance.close()
        self._instance = None

    def _call(self, batch: ScoreBatch) -> Scores:
        arguments: list[Any] = [batch.images, batch.prompts, batch.metadata]
        if self.groupwise:
            arguments.append(batch.groups)
        if isinstance(self._source, type):
            if self._instance is None:
                self._instance = self._source(**self.settings.options)
            answer = self._instance.score(*arguments)
        else:
            answer = self._source(*arguments, **self.settings.options)
        values, details = answer if isinstance(answer, tuple) else (answer, {})
        return Scores(
            np.asarray(values, dtype=np.float64),
            {name: np.asarray(detail, dtype=np.float64) for name, detail in details.items()},
        )


def find_source(key: str, source: str) -> Callable[..., Any]:
    """What an external scorer's `source` names: an entry point, else `module:attribute`.

    Raises:
        ConfigError: There is no such thing, or importing it fails.
    """
    offered = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    if source in offered:
        found: Callable[..., Any] = offered[source].load()
        return found
    module, _, attribute = source.partition(":")
    if not attribute:
        raise ConfigError(
            f"scorers.{key}.source: must be module:attribute or an entry point of {ENTRY_POINTS}, got {source!r}; "
            f"the installed packages offer: {', '.join(sorted(offered)) or 'none'}"
        )
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"scorers.{key}.source: cannot import {source} ({error}). A module is found in the folder that the command "
            "runs in, on PYTHONPATH, or installed."
        ) from error
    return found
