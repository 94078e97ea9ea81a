"""Batches and scores as messages between processes, without loss; the same over pipes and over HTTP.

Pixels travel as base64 of the raw bytes: for 1024x1024 pictures PNG at its fastest level takes ten times as long to
write and read, which costs more than the bytes it saves within a machine or its network.
"""

from __future__ import annotations

import binascii
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from chunk_grpo.config.scorers import AnyScorer
from chunk_grpo.errors import ConfigError, DataError, TransientError
from chunk_grpo.scorers.base import FloatArray, Need, ScoreBatch, Scorer, Scores
from chunk_grpo.scorers.identity import measured
from chunk_grpo.scorers.transient import facts_may_pass
from chunk_grpo.scorers.workers import lines

PACKAGES = ("chunk-grpo", "numpy", "pillow", "torch", "transformers")
"""Whose versions a worker tells."""

_ERRORS = {"ConfigError": ConfigError, "DataError": DataError, "TransientError": TransientError}
_SETTINGS: TypeAdapter[AnyScorer] = TypeAdapter(AnyScorer)


class WorkerError(Exception):
    """A scorer in another process has a bug: its exception and its traceback are the message."""


@dataclass(frozen=True)
class Question:
    """A batch on its way to a worker.

    Attributes:
        id: The answer must name it.
        keys: Of the images; the answer must name them in this order.
        line: The message, with a newline at its end.
    """

    id: str
    keys: Sequence[str]
    line: bytes


@dataclass(frozen=True)
class Identity:
    """What a worker says it is; see `Scorer`.

    Attributes:
        name: What is measured, with the model that does it.
        version: Of how it is measured.
        needs: What it reads besides the images.
        groupwise: Whether it compares the images of a group.
        spec_hash: Of name, version, settings and model files.
        measured: The settings that could move a score.
        software: Its Python and packages, for messages.
    """

    name: str
    version: int
    needs: frozenset[Need]
    groupwise: bool
    spec_hash: str
    measured: Mapping[str, Any]
    software: str


def start_line(key: str, settings: AnyScorer, device: str | None) -> bytes:
    """The first line to a worker."""
    return lines.write_message(
        {
            "protocol": lines.PROTOCOL,
            "key": key,
            "settings": settings.model_dump(mode="json"),
            "measured": measured(settings),
            "device": device,
        }
    )


def read_settings(start: lines.Start) -> AnyScorer:
    """The section of params.yaml that a start line holds.

    Raises:
        ConfigError: This version of the package has no such section.
    """
    try:
        return _SETTINGS.validate_json(json.dumps(start.settings))
    except ValueError as error:
        raise ConfigError(f"scorers.{start.key}: the worker does not know these settings: {error}") from error


def encode_batch(batch: ScoreBatch) -> Question:
    """A batch as a message.

    Args:
        batch: Of any size; `check_batch` has seen it.

    Raises:
        DataError: A record of metadata cannot be written as JSON.
    """
    height, width = batch.images.shape[1:3]
    question, keys = uuid.uuid4().hex, []
    # Put together by hand: json.dumps would look at each of millions of characters that need no escape.
    head = {"type": "score", "id": question, "height": height, "width": width, "rows": []}
    parts = [json.dumps(head).encode("ascii").removesuffix(b"]}")]
    for row, image in enumerate(batch.images):
        pixels = np.ascontiguousarray(image).reshape(-1).data
        keys.append(lines.image_key(row, height, width, pixels, batch.prompts[row]))
        about = _about(keys[-1], batch.prompts[row], batch.metadata[row], batch.groups[row])
        encoded = binascii.b2a_base64(pixels, newline=False)
        parts += [b", " if row else b"", about.removesuffix(b"}"), b', "pixels": "', encoded, b'"}']
    return Question(question, keys, b"".join([*parts, b"]}\n"]))


def _about(key: str, prompt: str, record: Mapping[str, object], group: int) -> bytes:
    about = {"key": key, "prompt": prompt, "metadata": dict(record), "group": int(group)}
    try:
        return json.dumps(about).encode("ascii")
    except (TypeError, ValueError) as error:
        raise DataError(
            f"prompt {prompt!r}: its metadata cannot be written as JSON ({error}): {record!r}"
        ) from error


def decode_batch(batch: lines.Batch) -> ScoreBatch:
    """A question that was read, as what scorers take."""
    images: NDArray[np.uint8] = np.empty((len(batch.rows), batch.height, batch.width, 3), dtype=np.uint8)
    for image, row in zip(images, batch.rows, strict=True):
        image[:] = np.frombuffer(row.pixels, dtype=np.uint8).reshape(image.shape)
    return ScoreBatch(
        images,
        [row.prompt for row in batch.rows],
        [row.metadata for row in batch.rows],
        [row.group for row in batch.rows],
    )


def worker_for(scorer: Scorer) -> lines.Worker:
    """A scorer of this process as what answers messages. It is checked; no model is loaded.

    Raises:
        ConfigError: A package is missing.
        DataError: A file is missing.
    """
    scorer.check()

    def score(batch: lines.Batch) -> tuple[Any, Mapping[str, Any]]:
        return answer_of(scorer.score(decode_batch(batch)))

    return lines.Worker(
        name=scorer.name,
        version=scorer.version,
        score=score,
        needs=sorted(scorer.needs),
        groupwise=scorer.groupwise,
        spec_hash=scorer.spec_hash(),
        measured=measured(scorer.settings),
        packages=PACKAGES,
        close=scorer.close,
    )


def answer_of(scores: Scores) -> lines.Answer:
    """Scores as a worker tells them."""
    if not scores.refused:
        return scores.values, scores.details
    values: list[Any] = scores.values.tolist()
    for row, reason in scores.refused.items():
        values[row] = lines.RefusedError(reason)
    return values, scores.details


def read_identity(message: Mapping[str, Any], who: str) -> Identity:
    """What a worker's `ready` message says.

    Args:
        message: Its first answer.
        who: The worker, for messages.

    Raises:
        ChunkGrpoError: It told an error of that kind instead.
        DataError: It speaks another protocol.
        WorkerError: It has a bug.
    """
    raise_told(message, who)
    if message.get("type") != "ready" or message.get("protocol") != lines.PROTOCOL:
        raise DataError(
            f"{who} speaks no protocol {lines.PROTOCOL}, it says {_short(message)}: take both sides from one version "
            "of chunk-grpo"
        )
    try:
        needs = message["needs"]
        unknown = sorted(set(needs) - set(get_args(Need)))
        if unknown:
            raise DataError(f"{who} needs {', '.join(unknown)}; known are {', '.join(get_args(Need))}")
        software = [f"python {message['python']}", *(f"{n} {v}" for n, v in message["packages"].items())]
        return Identity(
            str(message["name"]),
            int(message["version"]),
            frozenset(cast("list[Need]", needs)),
            bool(message["groupwise"]),
            str(message["spec_hash"]),
            dict(message["measured"]),
            ", ".join(software),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"{who} does not say what it is ({type(error).__name__}: {error}): {_short(message)}"
        ) from error


def read_scores(message: Mapping[str, Any], question: Question, spec_hash: str, who: str) -> Scores:
    """The scores in the answer to `question`; an answer to another one is never used.

    Args:
        message: The answer, which tells no error.
        question: What was asked.
        spec_hash: Of the scorer that was asked.
        who: The worker, for messages.

    Raises:
        DataError: It answers another question, in another order, by another scorer, or in another form.
    """
    asked = {"type": "scores", "id": question.id, "keys": list(question.keys), "spec_hash": spec_hash}
    for name, value in asked.items():
        if message.get(name) != value:
            raise DataError(
                f"{who} answered another question: {name} must be {_short(value)}, got {_short(message.get(name))}. "
                "The answer was not used."
            )
    try:
        details = {str(name): _floats(detail) for name, detail in message["details"].items()}
        refused = {int(row): str(reason) for row, reason in message.get("refused", {}).items()}
        values = _floats(message["values"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"{who} answered in another form ({type(error).__name__}: {error}): {_short(message)}"
        ) from error
    if not set(refused) <= set(range(len(question.keys))):
        raise DataError(f"{who} refused images that were not asked about: {_short(refused)}")
    return Scores(values, details, refused)


def raise_told(message: Mapping[str, Any], who: str) -> None:
    """Raise the error that a worker tells, if it tells one.

    Raises:
        ChunkGrpoError: Of the kind that was raised there, with its message; TransientError for what may pass.
        WorkerError: Anything else that was raised there.
    """
    if message.get("type") != "error":
        return
    kind, text = str(message.get("kind")), str(message.get("message"))
    if kind in _ERRORS:
        raise _ERRORS[kind](text)
    if facts_may_pass(message):
        raise TransientError(f"{kind}: {text}")
    raise WorkerError(f"{who} failed with {kind}: {text}\nThere:\n{message.get('traceback')}")


def _floats(values: Any) -> FloatArray:
    return np.asarray(values, dtype=np.float64)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:197]}..."
