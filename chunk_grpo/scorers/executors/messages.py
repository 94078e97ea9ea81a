"""The stage's side of the messages of `worker_protocol`, and scorers of this package as workers.

Pixels are sent as base64 of the raw bytes. For 1024x1024 images, PNG at its fastest level takes ten times as long to
encode and decode, which costs more than it saves on one machine or a local network.
"""

from __future__ import annotations

import binascii
import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from chunk_grpo.config.scorers import AnyScorer
from chunk_grpo.errors import ConfigError, DataError, TransientError
from chunk_grpo.scorers.base import Need, ScoreBatch, Scorer, Scores
from chunk_grpo.scorers.running.fingerprint import scoring_settings
from chunk_grpo.scorers.running.retry import facts_may_pass
from chunk_grpo.scorers.workers import worker_protocol
from chunk_grpo.scorers.workers.worker_protocol.messages import write_message

PACKAGES = ("chunk-grpo", "numpy", "pillow", "torch", "transformers")
"""Packages whose versions a worker reports."""

_ERRORS = {kind.__name__: kind for kind in (ConfigError, DataError, TransientError)}
_SETTINGS: TypeAdapter[AnyScorer] = TypeAdapter(AnyScorer)


class WorkerError(Exception):
    """A bug in a scorer of another process. The message holds its exception and traceback."""


class Identity(BaseModel):
    """A worker's `ready` message. Fields without a docstring mean the same as in `Scorer`."""

    type: Literal["ready"]
    protocol: Annotated[int, Field(ge=worker_protocol.PROTOCOL, le=worker_protocol.PROTOCOL)]
    name: str
    version: int
    needs: frozenset[Need]
    groupwise: bool
    spec_hash: str
    measured: dict[str, Any]
    """Settings that could change a score."""
    python: str
    """Version of the worker's Python."""
    packages: dict[str, str]
    """Versions of the worker's packages."""
    most_bytes: float = math.inf
    """Maximum size of a message."""

    @property
    def software(self) -> str:
        """Python and packages of the worker, for messages."""
        return ", ".join(f"{name} {version}" for name, version in {"python": self.python, **self.packages}.items())


def read_token(option: str, variable: str | None) -> str | None:
    """The token in an environment variable; None for no variable. `option` names the variable in messages.

    ConfigError if the variable is not set, or holds what an HTTP header does not allow; the message does not quote it.
    """
    if variable is None:
        return None
    token = os.environ.get(variable, "")
    if not token:
        raise ConfigError(f"{option}: the environment variable {variable} is not set or empty")
    if not all("!" <= character <= "~" for character in token):
        raise ConfigError(
            f"{option}: the token in {variable} must consist of visible ASCII characters, without spaces or line ends"
        )
    return token


def start_message(key: str, settings: AnyScorer, device: str | None, socket: int) -> bytes:
    """Message that starts a worker, which listens on the inherited `socket`."""
    return write_message(
        {
            "protocol": worker_protocol.PROTOCOL,
            "key": key,
            "settings": settings.model_dump(mode="json"),
            "measured": scoring_settings(settings),
            "device": device,
            "socket": socket,
        }
    )


def read_settings(start: worker_protocol.Start) -> AnyScorer:
    """Section of params.yaml in a start message; ConfigError if this version of the package does not accept it."""
    try:
        return _SETTINGS.validate_json(json.dumps(start.settings))
    except ValidationError as error:
        raise ConfigError(f"scorers.{start.key}: the worker does not accept these settings: {error}") from error


def encode_batch(batch: ScoreBatch, question: str) -> bytes:
    """Encode a batch, already checked by `check_batch`, as a message with the id `question`.

    DataError if the metadata of a row cannot be written as JSON.
    """
    height, width = batch.images.shape[1:3]
    head = {"type": "score", "id": question, "height": height, "width": width}
    rows = []
    sources = [None] * len(batch) if batch.sources is None else batch.sources
    for image, source, prompt, record, group in zip(
        batch.images, sources, batch.prompts, batch.metadata, batch.groups, strict=True
    ):
        try:
            row = json.dumps({"prompt": prompt, "metadata": dict(record), "group": int(group)})
        except (TypeError, ValueError) as error:
            raise DataError(
                f"prompt {prompt!r}: its metadata cannot be written as JSON ({error}): {record!r}"
            ) from error
        # Joined by hand: json.dumps would scan the pixels for escapes, which takes twice as long as to encode them.
        parts = {b"pixels": image} if source is None else {b"pixels": image, b"source": source}
        texts = [
            b', "%s": "%s"' % (name, binascii.b2a_base64(np.ascontiguousarray(part).data, newline=False))
            for name, part in parts.items()
        ]
        rows.append(b"%s%s}" % (row[:-1].encode("ascii"), b"".join(texts)))
    return b'%s, "rows": [%s]}\n' % (json.dumps(head)[:-1].encode("ascii"), b", ".join(rows))


def decode_batch(batch: worker_protocol.Batch) -> ScoreBatch:
    """Decode a parsed message into a ScoreBatch."""
    sources = [row.source for row in batch.rows if row.source is not None]
    return ScoreBatch(
        _pictures(batch, [row.pixels for row in batch.rows]),
        [row.prompt for row in batch.rows],
        [row.metadata for row in batch.rows],
        [row.group for row in batch.rows],
        _pictures(batch, sources) if sources else None,
    )


def _pictures(batch: worker_protocol.Batch, pixels: Sequence[bytes]) -> NDArray[np.uint8]:
    images: NDArray[np.uint8] = np.empty((len(pixels), batch.height, batch.width, 3), dtype=np.uint8)
    for image, values in zip(images, pixels, strict=True):
        image[:] = np.frombuffer(values, dtype=np.uint8).reshape(image.shape)
    return images


def worker_for(scorer: Scorer) -> worker_protocol.Worker:
    """Check a scorer of this process, as `Scorer.check` does, and wrap it as a worker. Loads no model."""
    scorer.check()
    return worker_protocol.Worker(
        name=scorer.name,
        version=scorer.version,
        score=lambda batch: answer_of(scorer.score(decode_batch(batch))),
        needs=sorted(scorer.needs),
        groupwise=scorer.groupwise,
        spec_hash=scorer.spec_hash(),
        measured=scoring_settings(scorer.settings),
        packages=PACKAGES,
        close=scorer.close,
    )


def answer_of(scores: Scores) -> worker_protocol.Answer:
    """Scores as a worker's answer, with a RefusedError for each refused image."""
    values: list[Any] = scores.values.tolist()
    for row, reason in scores.refused.items():
        values[row] = worker_protocol.RefusedError(reason)
    return values, scores.details


def read_identity(message: Mapping[str, Any], who: str) -> Identity:
    """Parse a worker's `ready` message; `who` is its name, for messages.

    Raises:
        ChunkGrpoError: The worker reported an error of that kind.
        DataError: The worker uses another protocol.
        WorkerError: The worker has a bug.
    """
    raise_remote_error(message, who)
    try:
        return Identity.model_validate(message)
    except ValidationError as error:
        raise DataError(
            f"{who} sent no ready message of protocol {worker_protocol.PROTOCOL}, but {_short(message)}; install the "
            f"same version of chunk-grpo on both sides ({error})"
        ) from error


def read_scores(message: Mapping[str, Any], question: str, count: int, spec_hash: str, who: str) -> Scores:
    """Parse the scores of `count` images in the answer to `question`, which is not an error message.

    DataError if it is malformed, or belongs to another question or scorer.
    """
    for name, value in {"type": "scores", "id": question, "spec_hash": spec_hash}.items():
        if message.get(name) != value:
            raise DataError(
                f"{who} answered another question: {name} must be {value!r}, got {_short(message.get(name))}. The "
                "answer was not used."
            )
    try:
        values = np.asarray(message["values"], dtype=np.float64)
        details = {str(name): np.asarray(detail, dtype=np.float64) for name, detail in message["details"].items()}
        refused = {int(row): str(reason) for row, reason in message["refused"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{who} sent malformed scores ({type(error).__name__}: {error}): {_short(message)}") from error
    if not refused.keys() <= set(range(count)):
        raise DataError(f"{who} refused images that are not in the batch: {_short(refused)}")
    return Scores(values, details, refused)


def raise_remote_error(message: Mapping[str, Any], who: str) -> None:
    """Raise the error that a worker's message reports; nothing for other messages.

    An error of this package keeps its kind. Another one that may pass is a TransientError, and the rest a WorkerError.
    """
    if message.get("type") != "error":
        return
    kind, text = str(message.get("kind")), str(message.get("message"))
    if kind in _ERRORS:
        raise _ERRORS[kind](text)
    if facts_may_pass(message):
        raise TransientError(f"{kind}: {text}")
    trace = message.get("traceback")  # a server keeps it in its log
    raise WorkerError(
        f"{who} failed with {kind}: {text}\n"
        + (f"Traceback of the worker:\n{trace}" if trace else "Its log has the traceback.")
    )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:197]}..."
