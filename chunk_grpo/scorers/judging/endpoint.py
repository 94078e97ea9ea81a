"""Endpoint of a judge: URL, API key, and the meaning of HTTP errors."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chunk_grpo.config.judges import JudgeSettings
from chunk_grpo.errors import ChunkGrpoError, ConfigError, DataError, RefusedError, TransientError

_QUOTED = 120
"""Maximum number of characters of a server's text that a message quotes."""

_SECRET = 4
"""Minimum length of a key to be hidden; shorter keys are placeholders and occur inside many words."""

_CONTENT_FILTERS = {"content_filter", "content_policy_violation"}
"""Error codes of Azure's and OpenAI's content filters."""


@dataclass(frozen=True)
class Endpoint:
    """An OpenAI-compatible server and the request settings for its model.

    The key is read from the environment on demand. No message of this class contains the key, nor the server's text
    about a refused key.
    """

    section: str
    """Section of params.yaml, such as scorers.wise, for messages."""
    settings: JudgeSettings
    """That section."""
    fields: Mapping[str, Any]
    """Default request fields besides model, messages, temperature 0 and seed, such as max_tokens."""

    def key(self) -> str:
        """The key; empty if none is needed.

        Raises:
            ConfigError: The variable is not set, or holds characters that no key can have.
        """
        variable = self.settings.api_key_variable
        if variable is None:
            return ""
        key = os.environ.get(variable, "").strip()
        if not key:
            raise ConfigError(
                f"{self.section}.api_key_variable: the environment variable {variable} is not set; put the key of "
                f"{self.settings.base_url} into it, or set api_key_variable to null if the server needs no key."
            )
        if not (key.isascii() and key.isprintable()) or set(key) & set(" \"'\\"):
            raise ConfigError(
                f"{self.section}.api_key_variable: the environment variable {variable} holds characters that no key "
                "can have, such as a line break, a quotation mark or a letter with an accent."
            )
        return key

    def hide(self, text: str) -> str:
        """Mask the key in a server's text: some servers repeat it. Call this before truncating the text."""
        key = self.key()
        return text.replace(key, "***") if len(key) >= _SECRET else text

    def quote(self, text: str) -> str:
        """Quoted beginning of a server's text, with the key masked."""
        return repr(self.hide(text)[:_QUOTED])

    def refusal(self, what: str, status: int, body: bytes) -> ChunkGrpoError:
        """Error for an HTTP status of 400 or more.

        Args:
            what: Name of the request, for the message.
            status: HTTP status of the last attempt.
            body: Body of the response.

        Returns:
            RefusedError if a content filter stopped the request, TransientError if a retry may succeed, else DataError.
        """
        settings = self.settings
        answer = f"{settings.base_url} answered {status} to {what}"
        if status in (401, 403):
            mend = (
                f"Put a key that may use {settings.judge} into the environment variable {settings.api_key_variable}."
                if settings.api_key_variable
                else f"Name the environment variable with the key in {self.section}.api_key_variable."
            )
            return DataError(f"{self.section}: {answer}: the key is missing, wrong, or may not do this. {mend}")
        answer = f"{answer}: {self.quote(plain(body))}"
        if status == 400 and _code(body) in _CONTENT_FILTERS:
            return RefusedError(answer)
        if status in (408, 409, 429) or status >= 500:
            return self.silence(what, answer)
        return DataError(
            f"{self.section}: {answer}. Check that base_url ends with /v1, that {settings.judge} is a model there "
            "that accepts images, and whether `request` must omit or replace a field (null omits it)."
        )

    def silence(self, what: str, reason: str) -> TransientError:
        """Error for a request without an answer in all attempts."""
        settings = self.settings
        return TransientError(
            f"{self.section}: no answer from {settings.base_url} to {what} after {settings.attempts} attempts of "
            f"{settings.timeout_seconds:g} s at most ({reason}). Check that the server runs and can be reached, or "
            "lower `concurrency` if it limits requests; then run the same command again. Received answers are kept."
        )


def _code(body: bytes) -> object:
    """Error code of a body in OpenAI's error format; None for any other body."""
    try:
        return json.loads(body)["error"]["code"]
    except (ValueError, KeyError, TypeError):
        return None


def plain(body: bytes) -> str:
    """Reply as text. JSON is rewritten without escapes, so that `hide` finds an escaped key."""
    text = body.decode(errors="replace")
    try:
        return json.dumps(json.loads(text), ensure_ascii=False)
    except ValueError:
        return text
