"""External scorers: functions or classes named in params.yaml."""

from __future__ import annotations

import inspect
import logging
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np

from chunk_grpo.config.scorers import ExternalScorer
from chunk_grpo.digests import Digests
from chunk_grpo.errors import ChunkGrpoError, ConfigError, DataError, RefusedError
from chunk_grpo.scorers.base import FloatArray, Need, ScoreBatch, Scores, check_batch, check_scores, sources_of
from chunk_grpo.scorers.running.configured import in_batches
from chunk_grpo.scorers.running.fingerprint import spec_hash
from chunk_grpo.scorers.running.retry import may_pass
from chunk_grpo.scorers.running.source_files import ENTRY_POINTS, offered_sources, source_digest

_LOG = logging.getLogger(__name__)


class External:
    """Wraps a user's function or class as a scorer.

    A function is called as `function(images, prompts, metadata, **options)`. It returns B numbers, or a pair of these
    numbers and a mapping of named details. A list may contain a RefusedError instead of a number. A class is made with
    `**options` and has a method `score(images, prompts, metadata)`. It may have `close()`. If it compares the images of
    a prompt, it sets `groupwise = True`, and `score` gets `groups` as a fourth argument. A parameter `sources` gets the
    pictures of which the images are edits, as a keyword. The instance is made at the
    first use, so that construction loads no model.
    """

    def __init__(self, key: str, settings: ExternalScorer, source: Callable[..., Any] | None = None) -> None:
        """Import the source and check its signature.

        Args:
            key: Name of the scorer in params.yaml.
            settings: The scorer's section.
            source: The function or class that `settings.source` names, if the caller has it; None: it is imported.

        Raises:
            ConfigError: The source does not exist, cannot be imported, or has another signature.
        """
        self.key, self.settings = key, settings
        self._source = find_source(key, settings.source) if source is None else source
        self._instance: Any = None
        called = getattr(self._source, "score", None) if isinstance(self._source, type) else self._source
        self._edits = "sources" in _parameters(called)
        self._check_calls()

    @property
    def name(self) -> str:
        """The key in params.yaml."""
        return self.key

    @property
    def version(self) -> int:
        """Version from params.yaml."""
        return self.settings.version

    @property
    def needs(self) -> frozenset[Need]:
        """Prompt and metadata, and the pictures if the source has a parameter `sources`."""
        return frozenset(("prompt", "metadata", *(("sources",) if self._edits else ())))

    @property
    def groupwise(self) -> bool:
        """The class's `groupwise`; False for a function."""
        return bool(getattr(self._source, "groupwise", False))

    def check(self) -> None:
        """Nothing to check: the constructor imported the source."""

    def spec_hash(self) -> str:
        """Hash of version, options, code, and the files that the code reads."""
        code = source_digest(self.settings.source, self.settings.files, Digests().of)
        return spec_hash(self.key, self.version, self.settings, {}, {"code": code})

    def score(self, batch: ScoreBatch) -> Scores:
        """Call the source with `batch_size` images at a time, or with all if it is groupwise.

        An empty batch calls nothing.

        Raises:
            DataError: The source does not return a finite number for each image, or raises an error that will not
                pass. Errors that may pass are raised as they are.
        """
        check_batch(batch)
        if not len(batch):
            return Scores(np.zeros(0))
        if self.groupwise:
            return self._call(batch)
        return in_batches(batch, self.settings.batch_size, self._call)

    def close(self) -> None:
        """Close the instance if it has `close`."""
        if hasattr(self._instance, "close"):
            self._instance.close()
        self._instance = None

    def _call(self, batch: ScoreBatch) -> Scores:
        arguments: list[Any] = [batch.images, batch.prompts, batch.metadata]
        if self.groupwise:
            arguments.append(batch.groups)
        edited = {"sources": sources_of(self.key, batch)} if self._edits else {}
        try:
            answer = self._answer(arguments, edited)
        except SystemExit as error:  # would end the stage as if it had succeeded
            raise RuntimeError(f"scorer {self.key}: {self.settings.source} called sys.exit({error})") from error
        except Exception as error:
            if may_pass(error) or isinstance(error, ChunkGrpoError):
                raise
            raise self._raised(error, batch) from error
        is_pair = isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], Mapping)
        values, details = answer if is_pair else (answer, {})
        refused: dict[int, str] = {}
        if isinstance(values, list):
            refused = {
                row: str(each) or "no reason given" for row, each in enumerate(values) if isinstance(each, RefusedError)
            }
            values = [None if row in refused else each for row, each in enumerate(values)]
        numbers = {name: self._numbers(each) for name, each in details.items()}
        scores = Scores(self._numbers(values), numbers, refused)
        # Check each call: a short and a long answer could add up to the right length with shifted scores.
        return check_scores(f"{self.name} ({self.settings.source})", scores, batch.prompts)

    def _answer(self, arguments: Sequence[Any], edited: Mapping[str, Any]) -> Any:
        """Return value of the function, or of the instance's `score`."""
        if not isinstance(self._source, type):
            return self._source(*arguments, **edited, **self.settings.options)
        if self._instance is None:
            self._instance = self._source(**self.settings.options)
        return self._instance.score(*arguments, **edited)

    def _raised(self, error: Exception, batch: ScoreBatch) -> DataError:
        """The error that names this scorer; the log gets the calls from the user's code on."""
        calls = [*traceback.extract_tb(error.__traceback__)]
        own = [number for number, call in enumerate(calls) if call.filename == __file__]
        calls = calls[own[-1] + 1 :] if own else calls
        place = ""
        if calls:
            _LOG.error("%s", "".join(traceback.format_list(calls)).rstrip())
            # The deepest call in the user's file, not in a library that it calls.
            *_, last = (call for call in calls if call.filename == calls[0].filename)
            place = f" ({Path(last.filename).name}, line {last.lineno})"  # a server's paths are not for its clients
        keys = sorted({key for each in batch.metadata for key in each})
        known = f"The keys of metadata are: {', '.join(keys) or 'none'}. " if isinstance(error, KeyError) else ""
        return DataError(
            f"scorers.{self.key}: {self.settings.source} raised {type(error).__name__}: {error}{place}. "
            f"{known}Mend it, and run the same command again."
        )

    def _numbers(self, answer: Any) -> FloatArray:
        try:
            if answer is None:  # numpy would make NaN of it
                raise TypeError("does the last line return them?")
            return np.asarray(answer, dtype=np.float64)
        except (TypeError, ValueError, RuntimeError) as error:  # RuntimeError: a tensor with a gradient
            raise DataError(
                f"scorers.{self.key}: {self.settings.source} must return a number for each image, or a pair of them "
                f"and a mapping of named details, got {answer!r:.200} ({error}). Mend it, and run the same command "
                "again."
            ) from error

    def _check_calls(self) -> None:
        """Check that the signature, where available, accepts the images and the options.

        Raises:
            ConfigError: The signature does not accept them.
        """
        images = ["images", "prompts", "metadata", *(["groups"] if self.groupwise else [])]
        options, edited = self.settings.options, {"sources": "pictures"} if self._edits else {}
        if not isinstance(self._source, type):
            self._check_call("options", self._source, images, {**edited, **options})
            return
        self._check_call("options", self._source, [], options)
        score = inspect.getattr_static(self._source, "score", None)
        if score is None:
            raise ConfigError(
                f"scorers.{self.key}.source: the class {self.settings.source} must have a method "
                f"score({', '.join(images)}), got none"
            )
        if inspect.isfunction(score):
            self._check_call("source", score, ["self", *images], edited)

    def _check_call(
        self, part: str, called: Callable[..., Any], positional: list[str], options: Mapping[str, Any]
    ) -> None:
        try:
            signature = inspect.signature(called)
        except (TypeError, ValueError):
            return  # some functions written in C have no signature
        try:
            signature.bind(*positional, **options)
        except TypeError as error:
            given = [*positional, *(f"{name}={value!r}" for name, value in options.items())]
            raise ConfigError(
                f"scorers.{self.key}.{part}: {getattr(called, '__name__', called)} of {self.settings.source} is called "
                f"with ({', '.join(given)}), but takes {signature}: {error}. Set its keyword arguments in options; "
                "images, prompts and metadata are the first positional arguments."
            ) from error


def _parameters(called: Any) -> Collection[str]:
    """Names of a callable's parameters; none if it has no signature, as some functions written in C."""
    try:
        return inspect.signature(called).parameters
    except (TypeError, ValueError):
        return ()


def find_source(key: str, source: str) -> Callable[..., Any]:
    """Function or class named by an external scorer's `source`: an entry point, else `module:attribute`.

    Raises:
        ConfigError: The source does not exist, cannot be imported, or is neither a function nor a class.
    """
    offered = offered_sources()
    module, _, attribute = offered.get(source, source).partition(":")
    if not (module and attribute):
        raise ConfigError(
            f"scorers.{key}.source: must be module:attribute, as my_rewards:brightness, or an entry point of "
            f"{ENTRY_POINTS}, got {source!r}; the installed packages offer: {', '.join(sorted(offered)) or 'none'}"
        )
    try:
        found = resolve_name(f"{module}:{attribute}")
    except (Exception, SystemExit) as error:  # importing runs the module, which may raise any error
        raise ConfigError(
            f"scorers.{key}.source: cannot import {source} ({type(error).__name__}: {error}). {_remedy(error, module)}"
        ) from error
    if not callable(found):
        raise ConfigError(f"scorers.{key}.source: must be a function or a class, but {source} is {found!r:.200}")
    function: Callable[..., Any] = found
    return function


def _remedy(error: BaseException, module: str) -> str:
    if isinstance(error, ModuleNotFoundError):
        if error.name and not f"{module}.".startswith(f"{error.name}."):
            return f"The module needs {error.name}: install it here, or run the scorer elsewhere (executors)."
        return "A module must be in the folder that the command runs in, on PYTHONPATH, or installed."
    return f"Mend {module}, or name another source."
