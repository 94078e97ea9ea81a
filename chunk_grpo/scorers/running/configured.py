"""Base of the built-in scorers: settings, identity, lazily loaded shared models, batches that fit into memory."""

from __future__ import annotations

import gc
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from chunk_grpo.config.scorer_settings import ScorerSettings, Weights
from chunk_grpo.errors import ConfigError, DataError
from chunk_grpo.gpus import has_gpu
from chunk_grpo.scorers.base import Need, ScoreBatch, Scores, check_batch
from chunk_grpo.scorers.running.checkpoints import find_checkpoint
from chunk_grpo.scorers.running.fingerprint import spec_hash

NARROWEST = 50
"""Largest quotient of the sides of an image. Above 125 rapidocr's resizing fails, above 200 HPSv3's."""

Settings = TypeVar("Settings", bound=ScorerSettings)
Model = TypeVar("Model")
Parsed = TypeVar("Parsed")


class ConfiguredScorer(ABC, Generic[Settings]):
    """Base of the built-in scorers, made from a section of params.yaml without loading a model.

    A subclass sets `version`, overrides `name` if several models could measure its kind, and implements `score_rows`.
    What it loads is its cached property `models`, which `close` drops.
    """

    version: ClassVar[int]
    needs: ClassVar[frozenset[Need]] = frozenset({"prompt"})
    groupwise: ClassVar[bool] = False

    def __init__(self, key: str, settings: Settings, device: str | None = None) -> None:
        """Load nothing yet.

        Args:
            key: Name of the scorer in params.yaml, for messages.
            settings: The scorer's section.
            device: Device such as cuda:1; None: the first GPU, else the CPU.
        """
        self.key, self.settings, self.device = key, settings, device
        self._taken: list[Hashable] = []

    @property
    def name(self) -> str:
        """The kind. A subclass adds the model if several models could measure it."""
        return str(self.settings.kind)  # type: ignore[attr-defined]  # each kind of settings has one

    @property
    def files(self) -> Mapping[str, Sequence[str]]:
        """Fields of the settings of type Weights, with the patterns of their files, as `find_checkpoint` takes them."""
        return {}

    def where(self, field: str) -> str:
        """Key of a setting in params.yaml, for messages."""
        return f"scorers.{self.key}.{field}"

    def folder(self, field: str) -> Path:
        """Folder with the files of one field of `files`.

        Raises:
            DataError: A file is missing; the message names it and the download command.
        """
        return find_checkpoint(self.where(field), getattr(self.settings, field), self.files[field])

    def check(self) -> None:
        """Find the files of all models; DataError if one is missing. Loads no model."""
        for field in self.files:
            self.folder(field)

    def spec_hash(self) -> str:
        """Hash of version, settings and model files."""
        return spec_hash(self.key, self.version, self.settings, self.files)

    def score(self, batch: ScoreBatch) -> Scores:
        """Score a batch of any size. Images that are too narrow to resize are refused."""
        check_batch(batch)
        count, height, width = batch.images.shape[:3]
        if not count:
            return Scores(np.zeros(0))
        if not 0 < max(height, width) <= NARROWEST * min(height, width):
            reason = f"{width} x {height} pixels: the longer side must be at most {NARROWEST} times the shorter one"
            return Scores(np.full(count, np.nan), refused=dict.fromkeys(range(count), reason))
        return self.score_all(batch)

    def score_all(self, batch: ScoreBatch) -> Scores:
        """Score a checked batch of one or more images, `batch_size` at a time."""
        return in_batches(batch, self.settings.batch_size, self.score_rows)

    @abstractmethod
    def score_rows(self, batch: ScoreBatch) -> Scores:
        """Score a batch that fits into memory."""

    def parsed(
        self, batch: ScoreBatch, parse: Callable[[str, Mapping[str, object]], Parsed], need: str = ""
    ) -> list[Parsed]:
        """What `parse` makes of each image's prompt and metadata.

        DataError if it fails; the message names the prompt, and ends with `need`, which says what the scorer needs.
        """
        found = []
        for prompt, record in zip(batch.prompts, batch.metadata, strict=True):
            try:
                found.append(parse(prompt, record))
            except (ValueError, KeyError, TypeError) as error:
                raise DataError(f"scorers.{self.key}: prompt {prompt!r}: {error}{need}") from error
        return found

    def take_model(self, identity: Hashable, load: Callable[[], Model]) -> Model:
        """Model shared with the other scorers of the process that use it, held until `close`.

        Args:
            identity: Everything the model depends on: kind, files, dtype and device.
            load: Loads the model if no scorer holds it yet.
        """
        model = MODELS.take(identity, load)
        self._taken.append(identity)
        return model

    def close(self) -> None:
        """Release the models."""
        self.__dict__.pop("models", None)
        while self._taken:
            MODELS.give_back(self._taken.pop())


def chosen_device(device: str | None) -> str:
    """Device of a scorer's models: `device` if set, else the process's GPU, else the CPU.

    Raises:
        ConfigError: `device` is no device of torch, or a GPU that this machine does not have.
    """
    if device is None:
        return "cuda" if has_gpu() else "cpu"
    import torch  # takes seconds; scorers without a model do not need it

    there = torch.cuda.device_count()
    try:
        wanted = torch.device(device)
    except RuntimeError as error:
        raise ConfigError(f"executors: device must be as cuda:1 or cpu, got {device!r}; set it, or null") from error
    if wanted.type == "cuda" and (wanted.index or 0) >= there:
        raise ConfigError(
            f"executors: device must be one of the {there} GPUs that torch sees here, got {device!r}; set null, or run "
            "where it is"
        )
    return device


def model_name(weights: Weights) -> str:
    """Model name for metric names: the hub id, or the last part of a local folder."""
    folder = Path(weights.checkpoint)
    return folder.resolve().name if folder.is_dir() else weights.checkpoint


def in_batches(batch: ScoreBatch, batch_size: int, score_rows: Callable[[ScoreBatch], Scores]) -> Scores:
    """Score `batch_size` images at a time; halve the number whenever the device runs out of memory.

    Args:
        batch: One or more images.
        batch_size: Maximum number of images at a time, at least 1.
        score_rows: Function that scores a part. An image's score must not depend on the other images of the part.
    """
    parts: list[Scores] = []
    first = 0
    while first < len(batch):
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
    """Concatenated scores of one or more batches."""
    details = {name: np.concatenate([part.details[name] for part in parts]) for name in parts[0].details}
    refused: dict[int, str] = {}
    first = 0
    for part in parts:
        refused |= {first + row: reason for row, reason in part.refused.items()}
        first += len(part.values)
    return Scores(np.concatenate([part.values for part in parts]), details, refused)


def _out_of_memory(error: RuntimeError) -> bool:
    torch = sys.modules.get("torch")  # not imported, which takes seconds, for an error that is not its own
    return torch is not None and isinstance(error, torch.OutOfMemoryError)


class SharedModels:
    """Reference-counted models of a process: loaded at the first `take`, dropped at the last `give_back`."""

    def __init__(self) -> None:
        self._models: dict[Hashable, Any] = {}
        self._users: dict[Hashable, int] = {}
        self._away: dict[Hashable, list[tuple[Any, Any]]] = {}

    def take(self, key: Hashable, load: Callable[[], Model]) -> Model:
        """Model identified by `key`, loaded if it is not held yet."""
        if key not in self._models:
            self._models[key] = load()
        self._users[key] = self._users.get(key, 0) + 1
        model: Model = self._models[key]
        return model

    def give_back(self, key: Hashable) -> None:
        """Release one use of a model."""
        self._users[key] -= 1
        if not self._users[key]:
            del self._users[key], self._models[key]
            self._away.pop(key, None)
            gc.collect()

    def put_away(self) -> None:
        """Move the networks of all models to the CPU. No scorer may run, until `bring_back`."""
        for key, model in self._models.items():
            if key not in self._away:
                networks = _networks(model)
                self._away[key] = [(network, next(network.parameters()).device) for network in networks]
                for network in networks:
                    network.to("cpu")

    def bring_back(self) -> None:
        """Move the networks to the devices where `put_away` found them."""
        for moved in self._away.values():
            for network, device in moved:
                network.to(device)
        self._away.clear()

    def users(self) -> Mapping[Hashable, int]:
        """Number of uses of each model."""
        return dict(self._users)


def _networks(model: Any) -> list[Any]:
    """A model that is a network of torch, or the networks among its attributes."""
    torch = sys.modules.get("torch")  # not imported, which takes seconds: without it there are no networks
    if torch is None:
        return []
    parts = [model] if isinstance(model, torch.nn.Module) else list(vars(model).values())
    return [part for part in parts if isinstance(part, torch.nn.Module)]


MODELS = SharedModels()
"""Models of this process."""
