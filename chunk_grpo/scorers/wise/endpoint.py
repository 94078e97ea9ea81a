"""Where a judge is, its key, and what its failures mean."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chunk_grpo.errors import ChunkGrpoError, ConfigError, DataError, RefusedError, TransientError

_QUOTED = 120
"""Characters of an answer or of a refusal that a message quotes."""

_SECRET = 4
"""Characters from which on a key is hidden; shorter ones are placeholders, and parts of many words."""

_CONTENT_FILTERS = {"content_filter", "content_policy_violation"}
"""Codes with which Azure's and OpenAI's own endpoints refuse a prompt or an image."""


@dataclass(frozen=True)
class Endpoint:
    """An OpenAI-compatible server and how its model is asked.

    The key is read from the environment when it is needed. No message of this class holds it, nor what the server says
    of it.

    Attributes:
        section: Of params.yaml, such as scorers.wise, for messages.
        judge: The model's id.
        url: Up to and with /v1.
        api_key_variable: Environment variable with the key; None: no key is sent.
        request: Fields of every request besides, or instead of, the usual ones; None leaves one out.
        max_tokens: Of an answer.
        concurrency: Requests under way at once.
        attempts: Of a request, and of a question.
        timeout_seconds: Of a request.
    """

    section: str
    judge: str
    url: str
    api_key_variable: str | None
    request: Mapping[str, Any]
    max_tokens: int
    concurrency: int
    attempts: int
    timeout_seconds: float

    def key(self) -> str:
        """The key, or an empty text where none is needed.

        Raises:
            ConfigError: The variable is not set, or holds what can be no key.
        """
        variable = self.api_key_variable
        if variable is None:
            return ""
        key = os.environ.get(variable, "").strip()
        if not key:
            raise ConfigError(
                f"{self.section}.api_key_variable: the environment variable {variable} is not set; put the key of "
                f"{self.url} into it, or write null if that asks for none."
            )
        if not (key.isascii() and key.isprintable()) or set(key) & set(" \"'\\"):
            raise ConfigError(
                f"{self.section}.api_key_variable: the environment variable {variable} holds characters that no key "
                "can have, such as a line break, a quotation mark or a letter with an accent."
            )
        return key

    def hide(self, text: str) -> str:
        """A server's text without the key, which some servers repeat; to be called before anything is cut off."""
        key = self.key()
        return text.replace(key, "***") if len(key) >= _SECRET else text

    def quote(self, text: str) -> str:
        """The beginning of a server's text."""
        return repr(self.hide(text)[:_QUOTED])

    def refusal(self, what: str, status: int, body: bytes) -> ChunkGrpoError:
        """What an HTTP status of 400 or more means.

        Args:
            what: Was asked.
            status: Of the last attempt.
            body: What the server says.

        Returns:
            DataError, or, for what may pass, TransientError; RefusedError where a content filter stopped this request.
        """
        said = f"{self.url} answered {status} to {what}"
        if status in (401, 403):
            mend = (
                f"Put a key that may use {self.judge} into the environment variable {self.api_key_variable}."
                if self.api_key_variable
                else f"Name the environment variable with the key in {self.section}.api_key_variable."
            )
            return DataError(f"{self.section}: {said}: the key is missing, wrong, or may not do this. {mend}")
        said = f"{said}: {self.quote(plain(body))}"
        if status == 400 and _code(body) in _CONTENT_FILTERS:
            return RefusedError(said)
        if status in (408, 409, 429) or status >= 500:
            return self.silence(what, said)
        return DataError(
            f"{self.section}: {said}. See that base_url goes up to /v1, that {self.judge} is the id of a model there "
            "that sees images, and whether `request` must leave out or replace a field (null leaves it out)."
        )

    def silence(self, what: str, reason: str) -> TransientError:
        """No answer in all attempts."""
        return TransientError(
            f"{self.section}: no answer from {self.url} to {what} after {self.attempts} attempts of "
            f"{self.timeout_seconds:g} s at most ({reason}). See that the server runs and can be reached, or lower "
            "`concurrency` if it limits requests; then run the same command again. Answers that came are kept."
        )


def _code(body: bytes) -> object:
    """The code of an error that the server explains in OpenAI's form; None for any other body."""
    try:
        return json.loads(body)["error"]["code"]
    except (ValueError, KeyError, TypeError):
        return None


def plain(body: bytes) -> str:
    """A reply as text; JSON without escapes, in which a key could hide."""
    text = body.decode(errors="replace")
    try:
        return json.dumps(json.loads(text), ensure_ascii=False)
    except ValueError:
        return text
