"""Lossless messages with batches and scores between processes, the same over pipes and HTTP.

Pixels are sent as base64 of the raw bytes. For 1024x1024 images, PNG at its fastest level takes ten times as long to
encode and decode, which costs more than it saves on one machine or a local network.
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
from chunk_grpo.scorers.running.fingerprint import scoring_settings
from chunk_grpo.scorers.running.transient import facts_may_pass
from chunk_grpo.scorers.workers import lines

PACKAGES = ("chunk-grpo", "numpy", "pillow", "torch", "transformers")
"""Packages whose versions a worker reports."""

_ERRORS = {"ConfigError": ConfigError, "DataError": DataError, "TransientError": TransientError}
_SETTINGS: TypeAdapter[AnyScorer] = TypeAdapter(AnyScorer)


class WorkerError(Exception):
    """A bug in a scorer of another process. The message holds its exception and traceback."""


@dataclass(frozen=True)
class Question:
    """An encoded batch for a worker.

    Attributes:
        id: Id of the message; the answer must repeat it.
        keys: Keys of the images; the answer must repeat them in this order.
        line: The message, ending with a newline.
    """

    id: str
    keys: Sequence[str]
    line: bytes


@dataclass(frozen=True)
class Identity:
    """Identity that a worker reports; see `Scorer`.

    Attributes:
        name: Name of the measure and its model.
        version: Version of the scoring code.
        needs: Inputs of the scorer besides the images.
        groupwise: Whether the scorer compares the images of a group.
        spec_hash: Hash of name, version, settings and model files.
        measured: Settings that could change a score.
        software: Python and package versions of the worker, for messages.
    """

    name: str
    version: int
    needs: frozenset[Need]
    groupwise: bool
    spec_hash: str
    measured: Mapping[str, Any]
    software: str


def start_line(key: str, settings: AnyScorer, device: str | None) -> bytes:
    """First line sent to a worker."""
    return lines.write_message(
        {
            "protocol": lines.PROTOCOL,
            "key": key,
            "settings": settings.model_dump(mode="json"),
            "measured": scoring_settings(settings),
            "device": device,
        }
    )


def read_settings(start: lines.Start) -> AnyScorer:
    """Section of params.yaml in a start line.

    Raises:
        ConfigError: This version of the package does not accept the section.
    """
    try:
        return _SETTINGS.validate_json(json.dumps(start.settings))
    except ValueError as error:
        raise ConfigError(
            f"scorers.{start.key}: the worker does not accept these settings: {error}"
        ) from error


def encode_batch(batch: ScoreBatch) -> Question:
    """Encode a batch as a message.

    Args:
        batch: Batch of any size, already checked by `check_batch`.

    Raises:
        DataError: A metadata record cannot be written as JSON.
    """
    height, width = batch.images.shape[1:3]
    question, keys = uuid.uuid4().hex, []
    # Assembled by hand: json.dumps would scan millions of base64 characters for escapes.
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
    """Decode a parsed message into a ScoreBatch."""
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
    """Check a scorer of this process and wrap it as a worker. Loads no model.

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
        measured=scoring_settings(scorer.settings),
        packages=PACKAGES,
        close=scorer.close,
    )


def answer_of(scores: Scores) -> lines.Answer:
    """Scores as a worker's answer, with a RefusedError for each refused image."""
    if not scores.refused:
        return scores.values, scores.details
    values: list[Any] = scores.values.tolist()
    for row, reason in scores.refused.items():
        values[row] = lines.RefusedError(reason)
    return values, scores.details


def read_identity(message: Mapping[str, Any], who: str) -> Identity:
    """Parse a worker's `ready` message.

    Args:
        message: First answer of the worker.
        who: Name of the worker, for messages.

    Raises:
        ChunkGrpoError: The worker reported an error of that kind.
        DataError: The worker uses another protocol.
        WorkerError: The worker has a bug.
    """
    raise_remote_error(message, who)
    if message.get("type") != "ready" or message.get("protocol") != lines.PROTOCOL:
        raise DataError(
            f"{who}: protocol mismatch: expected a ready message of protocol {lines.PROTOCOL}, got {_short(message)}; "
            "install the same version of chunk-grpo on both sides"
        )
    try:
        needs = message["needs"]
        unknown = sorted(set(needs) - set(get_args(Need)))
        if unknown:
            raise DataError(
                f"{who}: needs must be among {', '.join(get_args(Need))}, got {', '.join(unknown)}"
            )
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
            f"{who} sent a malformed ready message ({type(error).__name__}: {error}): {_short(message)}"
        ) from error


def read_scores(message: Mapping[str, Any], question: Question, spec_hash: str, who: str) -> Scores:
    """Parse the scores in the answer to `question`; reject an answer to another question.

    Args:
        message: The answer, not an error message.
        question: The batch that was sent.
        spec_hash: Spec hash of the scorer.
        who: Name of the worker, for messages.

    Raises:
        DataError: The answer is malformed, or belongs to another question, order of images or scorer.
    """
    expected = {"type": "scores", "id": question.id, "keys": list(question.keys), "spec_hash": spec_hash}
    for name, value in expected.items():
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
            f"{who} sent malformed scores ({type(error).__name__}: {error}): {_short(message)}"
        ) from error
    if not set(refused) <= set(range(len(question.keys))):
        raise DataError(f"{who} refused images that are not in the batch: {_short(refused)}")
    return Scores(values, details, refused)


def raise_remote_error(message: Mapping[str, Any], who: str) -> None:
    """Raise the error that a worker's message reports, if any.

    Raises:
        ChunkGrpoError: Error of the reported kind and message; TransientError for errors that may pass.
        WorkerError: Any other error of the worker.
    """
    if message.get("type") != "error":
        return
    kind, text = str(message.get("kind")), str(message.get("message"))
    if kind in _ERRORS:
        raise _ERRORS[kind](text)
    if facts_may_pass(message):
        raise TransientError(f"{kind}: {text}")
    raise WorkerError(
        f"{who} failed with {kind}: {text}\nTraceback of the worker:\n{message.get('traceback')}"
    )


def _floats(values: Any) -> FloatArray:
    return np.asarray(values, dtype=np.float64)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:197]}..."
