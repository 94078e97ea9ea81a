"""Scorers from outside this package: a function, or a class, that params.yaml names."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from chunk_grpo.config.scorers import ExternalScorer
from chunk_grpo.digests import Digests
from chunk_grpo.errors import ConfigError, DataError, RefusedError
from chunk_grpo.scorers.base import FloatArray, Need, ScoreBatch, Scores, check_batch, check_scores
from chunk_grpo.scorers.configured import in_batches
from chunk_grpo.scorers.identity import spec_hash
from chunk_grpo.scorers.source_files import ENTRY_POINTS, offered_sources, source_digest


class External:
    """A function or a class of the user's as a scorer, with the version that params.yaml gives it.

    A function is called as `function(images, prompts, metadata, **options)` and returns B numbers, or a pair of them
    and a mapping of named details; a list may hold a RefusedError in the place of a number. A class is made with
    `**options` and has such a function as its method `score`; it may have `close()`, and `groupwise = True` if it
    compares the images of a prompt; it then gets `groups` as a fourth argument. It is made at the first use, so that
    finding it loads no model.
    """

    needs: frozenset[Need] = frozenset({"prompt", "metadata"})

    def __init__(self, key: str, settings: ExternalScorer) -> None:
        """Find it.

        Args:
            key: Its name in params.yaml.
            settings: Its section.

        Raises:
            ConfigError: There is no such thing, importing it fails, or it cannot be called like this.
        """
        self.key, self.settings = key, settings
        self._source = find_source(key, settings.source)
        self._instance: Any = None
        self._check_calls()

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
        """Of version, options, its code, and the files that it reads."""
        code = source_digest(self.settings.source, self.settings.files, Digests().of)
        return spec_hash(self.key, self.version, self.settings, {}, {"code": code})

    def score(self, batch: ScoreBatch) -> Scores:
        """Call it with `batch_size` images at a time, or, if it is groupwise, with all; without images not at all.

        Raises:
            DataError: It does not return a finite number for each image.
        """
        check_batch(batch)
        if not len(batch):
            return Scores(np.zeros(0))
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
        try:
            answer = self._answer(arguments)
        except SystemExit as error:  # it would end the stage, as if all were done
            raise RuntimeError(
                f"scorer {self.key}: {self.settings.source} called sys.exit({error})"
            ) from error
        is_pair = isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], Mapping)
        values, details = answer if is_pair else (answer, {})
        refused: dict[int, str] = {}
        if isinstance(values, list):
            refused = {
                row: str(each) or "no reason given"
                for row, each in enumerate(values)
                if isinstance(each, RefusedError)
            }
            values = [None if row in refused else each for row, each in enumerate(values)]
        numbers = {name: self._numbers(each) for name, each in details.items()}
        scores = Scores(self._numbers(values), numbers, refused)
        # Each call by itself: of two, one number too few and one too many would go unseen, and be others' scores.
        return check_scores(self.name, scores, batch.prompts)

    def _answer(self, arguments: Sequence[Any]) -> Any:
        """What the function, or the method of the instance, returns."""
        if not isinstance(self._source, type):
            return self._source(*arguments, **self.settings.options)
        if self._instance is None:
            self._instance = self._source(**self.settings.options)
        return self._instance.score(*arguments)

    def _numbers(self, answer: Any) -> FloatArray:
        try:
            return np.asarray(answer, dtype=np.float64)
        except (TypeError, ValueError, RuntimeError) as error:  # RuntimeError: of a tensor with a gradient
            raise DataError(
                f"scorers.{self.key}: {self.settings.source} must return a number for each image, or a pair of them "
                f"and a mapping of named details, got {answer!r:.200} ({error})"
            ) from error

    def _check_calls(self) -> None:
        """Refuse what cannot be called with the images and the options, as far as its signature tells.

        Raises:
            ConfigError: It cannot.
        """
        images = ["images", "prompts", "metadata", *(["groups"] if self.groupwise else [])]
        options = self.settings.options
        if not isinstance(self._source, type):
            self._check_call("options", self._source, images, options)
            return
        self._check_call("options", self._source, [], options)
        score = inspect.getattr_static(self._source, "score", None)
        if score is None:
            raise ConfigError(
                f"scorers.{self.key}.source: the class {self.settings.source} must have a method "
                f"score({', '.join(images)}), got none"
            )
        if inspect.isfunction(score):
            self._check_call("source", score, ["self", *images], {})

    def _check_call(
        self, part: str, called: Callable[..., Any], positional: list[str], options: Mapping[str, Any]
    ) -> None:
        try:
            signature = inspect.signature(called)
        except (TypeError, ValueError):
            return  # some that are written in C tell none
        try:
            signature.bind(*positional, **options)
        except TypeError as error:
            given = [*positional, *(f"{name}={value!r}" for name, value in options.items())]
            raise ConfigError(
                f"scorers.{self.key}.{part}: {getattr(called, '__name__', called)} of {self.settings.source} is called "
                f"with ({', '.join(given)}), but takes {signature}: {error}. Give the keyword arguments that it takes "
                "as options; the images and what is known of them come first."
            ) from error


def find_source(key: str, source: str) -> Callable[..., Any]:
    """What an external scorer's `source` names: an entry point, else `module:attribute`.

    Raises:
        ConfigError: There is no such thing, importing it fails, or it is neither a function nor a class.
    """
    offered = offered_sources()
    module, _, attribute = offered.get(source, source).partition(":")
    if not (module and attribute):
        raise ConfigError(
            f"scorers.{key}.source: must be module:attribute or an entry point of {ENTRY_POINTS}, got {source!r}; "
            f"the installed packages offer: {', '.join(sorted(offered)) or 'none'}"
        )
    try:
        found = attrgetter(attribute)(importlib.import_module(module))
    except (Exception, SystemExit) as error:  # the module runs when it is imported, and may raise anything
        raise ConfigError(
            f"scorers.{key}.source: cannot import {source} ({type(error).__name__}: {error}). A module is found in the "
            "folder that the command runs in, on PYTHONPATH, or installed."
        ) from error
    if not callable(found):
        raise ConfigError(
            f"scorers.{key}.source: must be a function or a class, but {source} is {found!r:.200}"
        )
    function: Callable[..., Any] = found
    return function
