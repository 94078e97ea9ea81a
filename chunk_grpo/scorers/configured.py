"""What the scorers of this package share: settings, identity, lazy models, batches that fit into memory."""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from chunk_grpo.config.scorers import ScorerSettings, Weights
from chunk_grpo.scorers.base import Need, ScoreBatch, Scores, check_batch
from chunk_grpo.scorers.checkpoints import find_checkpoint
from chunk_grpo.scorers.identity import spec_hash

Settings = TypeVar("Settings", bound=ScorerSettings)
Model = TypeVar("Model")


class ConfiguredScorer(ABC, Generic[Settings]):
    """Base of the built-in scorers: made from a section of params.yaml, without loading anything.

    A subclass has `version`, sets `name` where its kind is not all of it, and writes `score_rows`.
    """

    version: ClassVar[int]
    needs: ClassVar[frozenset[Need]] = frozenset({"prompt"})
    groupwise: ClassVar[bool] = False

    def __init__(self, key: str, settings: Settings, device: str | None = None) -> None:
        """Keep what is needed to load later.

        Args:
            key: The scorer's name in params.yaml, for messages.
            settings: Its section.
            device: Such as cuda:1; None: the first GPU, else the CPU.
        """
        self.key, self.settings, self.device = key, settings, device
        self._taken: list[Hashable] = []

    @property
    def name(self) -> str:
        """The kind; a subclass adds the model where several could measure it."""
        return str(self.settings.kind)  # type: ignore[attr-defined]  # each kind of settings has one

    @property
    def files(self) -> Mapping[str, Sequence[str]]:
        """The settings that are Weights, each with the patterns of its files, as `find_checkpoint` takes them."""
        return {}

    def folder(self, field: str) -> Path:
        """Where the files of one of `files` are.

        Raises:
            DataError: One is missing; says which, and how to get it.
        """
        return find_checkpoint(
            f"scorers.{self.key}.{field}", getattr(self.settings, field), self.files[field]
        )

    def check(self) -> None:
        """Find everything that scoring needs and load nothing.

        Raises:
            ConfigError: A package is not installed; names the extra.
            DataError: A file is missing; says which, and how to get it.
        """
        for field in self.files:
            self.folder(field)

    def spec_hash(self) -> str:
        """Identifies what is measured: version, settings, and the models' files."""
        return spec_hash(self.key, self.version, self.settings, self.files)

    def score(self, batch: ScoreBatch) -> Scores:
        """Score a batch of any size, `batch_size` images at a time.

        Raises:
            DataError: An input cannot be judged.
        """
        check_batch(batch)
        return in_batches(batch, self.settings.batch_size, self.score_rows)

    @abstractmethod
    def score_rows(self, batch: ScoreBatch) -> Scores:
        """Score a batch that fits into memory."""

    def take_model(self, identity: Hashable, load: Callable[[], Model]) -> Model:
        """A model that this scorer shares with those of the process that need the same one, until `close`.

        Args:
            identity: All that the model depends on: kind, files, dtype and device.
            load: Loads it, where no scorer has it yet.
        """
        model = MODELS.take(identity, load)
        self._taken.append(identity)
        return model

    def close(self) -> None:
        """Give the models back; a subclass drops what it made of them before."""
        while self._taken:
            MODELS.give_back(self._taken.pop())


def chosen_device(device: str | None) -> str:
    """The device of a scorer's models: as asked for, else the process's GPU, else the CPU."""
    import torch  # takes seconds, which scorers without a model need not wait for

    return device or ("cuda" if torch.cuda.is_available() else "cpu")


def model_name(weights: Weights) -> str:
    """A hub id as it is, a local folder by its last part: what names a model in a metric's name."""
    folder = Path(weights.checkpoint)
    return folder.resolve().name if folder.is_dir() else weights.checkpoint


def in_batches(batch: ScoreBatch, batch_size: int, score_rows: Callable[[ScoreBatch], Scores]) -> Scores:
    """Score `batch_size` images at a time; half as many whenever the device's memory is too small for them.

    Args:
        batch: Images of any number.
        batch_size: The most at a time, at least 1.
        score_rows: Scores a part; an image's score must not depend on the part.
    """
    parts: list[Scores] = []
    first = 0
    while first < len(batch) or not parts:
        rows = range(first, min(first + batch_size, len(batch)))
        try:
            parts.append(score_rows(batch.rows(rows)))
        except RuntimeError as error:
            if not _out_of_memory(error) or batch_size == 1:
                raise
            batch_size = max(batch_size // 2, 1)
            gc.collect()
            continue
        first = rows.stop
    return joined(parts)


def joined(parts: Sequence[Scores]) -> Scores:
    """The scores of several batches, at least one, as those of one."""
    details = {name: np.concatenate([part.details[name] for part in parts]) for name in parts[0].details}
    refused: dict[int, str] = {}
    first = 0
    for part in parts:
        refused |= {first + row: reason for row, reason in part.refused.items()}
        first += len(part.values)
    return Scores(np.concatenate([part.values for part in parts]), details, refused)


def _out_of_memory(error: RuntimeError) -> bool:
    import torch  # as above

    return isinstance(error, torch.OutOfMemoryError)


class SharedModels:
    """Models that several scorers of a process use: loaded by the first, dropped when the last gives it back."""

    def __init__(self) -> None:
        self._models: dict[Hashable, Any] = {}
        self._users: dict[Hashable, int] = {}

    def take(self, key: Hashable, load: Callable[[], Model]) -> Model:
        """The model that `key` identifies, loaded if no one has it."""
        if key not in self._models:
            self._models[key] = load()
        self._users[key] = self._users.get(key, 0) + 1
        model: Model = self._models[key]
        return model

    def give_back(self, key: Hashable) -> None:
        """One user less."""
        self._users[key] -= 1
        if not self._users[key]:
            del self._users[key], self._models[key]
            gc.collect()

    def users(self) -> Mapping[Hashable, int]:
        """How many scorers have each model."""
        return dict(self._users)


MODELS = SharedModels()
"""The process's models."""
