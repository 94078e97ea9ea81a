"""Client of a vision-language model at an OpenAI-compatible endpoint, with concurrent requests.

The openai package handles time-outs, retry waits (Retry-After, else doubling), connections and the protocol.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from anyio.from_thread import start_blocking_portal
from numpy.typing import NDArray
from openai import APIConnectionError, APIStatusError, AsyncOpenAI, Omit
from PIL import Image

from chunk_grpo.config.judges import JudgeSettings
from chunk_grpo.errors import ChunkGrpoError, ConfigError, DataError, RefusedError, TransientError

Result = TypeVar("Result")

_LOG = logging.getLogger(__name__)

_QUOTED = 120
"""Maximum number of characters of a server's text that a message quotes."""

_SECRET = 4
"""Minimum length of a key to be hidden; shorter keys are placeholders and occur inside many words."""

_CONTENT_FILTERS = {"content_filter", "content_policy_violation"}
"""Error codes of Azure's and OpenAI's content filters."""


@dataclass(frozen=True)
class Question:
    """A question about one image, or about a picture and its edit."""

    key: str
    """Key of the question."""
    label: str
    """Name of the question in messages, such as "WISE prompt 401"."""
    system: str | None
    """The system message; None: no such message."""
    text: str
    """The user message."""
    images: Sequence[NDArray[np.uint8]]
    """uint8 [H, W, 3] each; sent as PNG."""
    images_first: bool = False
    """Whether the images precede the text."""

    def messages(self) -> list[dict[str, Any]]:
        """Messages of a chat completion request."""
        text: list[dict[str, Any]] = [{"type": "text", "text": self.text}]
        seen = [{"type": "image_url", "image_url": {"url": _data_url(image)}} for image in self.images]
        user = {"role": "user", "content": seen + text if self.images_first else text + seen}
        if self.system is None:
            return [user]
        return [{"role": "system", "content": [{"type": "text", "text": self.system}]}, user]


def _data_url(image: NDArray[np.uint8]) -> str:
    stream = io.BytesIO()
    Image.fromarray(image).save(stream, format="PNG", compress_level=1)
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()


@dataclass(frozen=True)
class Judge:
    """A model at an endpoint, to which questions are sent.

    The key is read from the environment on demand, and is only in the requests' Authorization header. No log record or
    exception contains it, nor the server's text about a refused key.
    """

    section: str
    """Section of params.yaml, such as scorers.wise, for messages."""
    settings: JudgeSettings
    """That section."""
    fields: Mapping[str, Any]
    """Default request fields besides model, messages, temperature 0 and seed, such as max_tokens."""
    read: Callable[[bytes], str]
    """Answer in the body of a chat completion. Raises ValueError if there is none, and the question is sent again."""

    def check(self) -> None:
        """Request the endpoint's list of models; warn if the judge is not in it. Raises as `ask`."""
        url, judge, listed = self.settings.base_url, self.settings.judge, _run(self._list_models)
        if listed is None:
            _LOG.warning("%s does not list its models; %s was not checked", url, judge)
        elif judge not in listed:
            others = self._hide(", ".join(sorted(listed)[:8]) or "none")
            _LOG.warning("%s does not list %s, but %s", url, judge, others)

    def ask(self, questions: Sequence[Question], take: Callable[[Question, str], object]) -> dict[str, str]:
        """Send all questions concurrently. A question without a well-formed answer does not stop the others.

        The event loop runs in a separate thread. This works inside a running event loop, and an exception from a signal
        handler reaches the caller and cancels the pending requests.

        Args:
            questions: Any number of questions.
            take: Called with a question and its answer on arrival. Raises ValueError for a malformed answer, and the
                question is sent again.

        Returns:
            Key of each question without a well-formed answer, to the reason.

        Raises:
            ConfigError: The key's variable is not set.
            DataError: The endpoint refuses the key or a request.
            TransientError: The endpoint fails or does not answer.
        """
        return _run(self._ask_all, questions, take)

    def _client(self) -> AsyncOpenAI:
        return AsyncOpenAI(
            api_key=self._key() or "none",  # without a value the package reads OPENAI_API_KEY
            base_url=self.settings.base_url,
            timeout=self.settings.timeout_seconds,
            max_retries=self.settings.attempts - 1,
        )

    def _headers(self) -> dict[str, str | Omit]:
        return {} if self.settings.api_key_variable else {"Authorization": Omit()}

    async def _list_models(self) -> list[str] | None:
        async def request(client: AsyncOpenAI) -> bytes:
            try:
                return (await client.models.with_raw_response.list(extra_headers=self._headers())).content
            except APIStatusError as error:
                if error.status_code in (404, 405, 501):
                    return b""  # the server runs, but has no list of models
                raise

        async with self._client() as client:
            reply = await self._explained("GET /models", request(client))
        try:
            return [str(model["id"]) for model in json.loads(reply)["data"]]
        except (ValueError, KeyError, TypeError):
            return None

    async def _ask_all(self, questions: Sequence[Question], take: Callable[[Question, str], object]) -> dict[str, str]:
        free = asyncio.Semaphore(self.settings.concurrency)

        async def ask(client: AsyncOpenAI, question: Question) -> str:
            async with free:
                return await self._ask(client, question, take)

        async with self._client() as client:
            tasks = [asyncio.create_task(ask(client, question)) for question in questions]
            try:
                faults = await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        return {question.key: fault for question, fault in zip(questions, faults, strict=True) if fault}

    async def _ask(self, client: AsyncOpenAI, question: Question, take: Callable[[Question, str], object]) -> str:
        """Reason why there is no well-formed answer; empty if there is one."""
        messages = await asyncio.to_thread(question.messages)  # PNG encoding is slow
        attempts = self.settings.attempts
        for attempt in range(attempts):
            try:
                reply = await self._request(client, question, messages, seed=attempt)
            except RefusedError as error:  # a retry would be refused too
                return str(error)
            answer = self._hide(_plain(reply))
            try:
                answer = self._hide(self.read(reply))
                take(question, answer)
                return ""
            except ValueError as error:
                fault = f"{question.label}: {self._hide(str(error))}; the answer begins {self._quote(answer)}"
            _LOG.warning("attempt %d of %d: %s", attempt + 1, attempts, fault)
        return f"no well-formed answer in {attempts} attempts. {fault}"

    async def _request(
        self, client: AsyncOpenAI, question: Question, messages: list[dict[str, Any]], seed: int
    ) -> bytes:
        """Body of the reply. Each attempt has its own seed, since a deterministic server would repeat its answer."""
        fields = {"temperature": 0.0, "seed": seed, **self.fields}
        kept = {k: v for k, v in {**fields, **self.settings.request}.items() if v is not None}
        reply = await self._explained(
            question.label,
            client.chat.completions.with_raw_response.create(
                model=self.settings.judge,
                messages=messages,  # type: ignore[arg-type]  # built as dicts
                extra_body=kept,
                extra_headers=self._headers(),
            ),
        )
        return reply.content

    async def _explained(self, what: str, request: Awaitable[Result]) -> Result:
        """Result of the request. Errors of the openai package become this package's, without a reference to them."""
        failure: ChunkGrpoError
        try:
            return await request
        except APIStatusError as error:
            failure = self._refusal(what, error)
        except APIConnectionError as error:
            failure = self._silence(what, f"{error.message} {type(error.__cause__).__name__}")
        raise failure  # outside the except clause: the chained error could contain the key, if a server repeats it

    def _key(self) -> str:
        """The key; empty if none is needed. ConfigError if its variable is not set, or holds no key."""
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

    def _hide(self, text: str) -> str:
        """Mask the key in a server's text, before it is truncated: some servers repeat the key."""
        key = self._key()
        return text.replace(key, "***") if len(key) >= _SECRET else text

    def _quote(self, text: str) -> str:
        """Quoted beginning of a server's text, with the key masked."""
        return repr(self._hide(text)[:_QUOTED])

    def _refusal(self, what: str, error: APIStatusError) -> ChunkGrpoError:
        """RefusedError if a content filter stopped the request, TransientError if a retry may help, else DataError."""
        settings, status = self.settings, error.status_code
        answer = f"{settings.base_url} answered {status} to {what}"
        if status in (401, 403):
            mend = (
                f"Put a key that may use {settings.judge} into the environment variable {settings.api_key_variable}."
                if settings.api_key_variable
                else f"Name the environment variable with the key in {self.section}.api_key_variable."
            )
            return DataError(f"{self.section}: {answer}: the key is missing, wrong, or may not do this. {mend}")
        answer = f"{answer}: {self._quote(_plain(error.response.content))}"
        if status == 400 and error.code in _CONTENT_FILTERS:
            return RefusedError(answer)
        if status in (408, 409, 429) or status >= 500:
            return self._silence(what, answer)
        return DataError(
            f"{self.section}: {answer}. Check that base_url ends with /v1, that {settings.judge} is a model there "
            "that accepts images, and whether `request` must omit or replace a field (null omits it)."
        )

    def _silence(self, what: str, reason: str) -> TransientError:
        """Error for a request without an answer in all attempts."""
        settings = self.settings
        return TransientError(
            f"{self.section}: no answer from {settings.base_url} to {what} after {settings.attempts} attempts of "
            f"{settings.timeout_seconds:g} s at most ({reason}). Check that the server runs and can be reached, or "
            "lower `concurrency` if it limits requests; then run the same command again. Received answers are kept."
        )


def _run(function: Callable[..., Coroutine[Any, Any, Result]], *arguments: Any) -> Result:
    """Run a coroutine in an event loop in a separate thread; an exception in this thread cancels it."""
    with start_blocking_portal() as portal:
        result: Result = portal.call(function, *arguments)
        return result


def _plain(body: bytes) -> str:
    """Reply as text. JSON is rewritten without escapes, so that `_hide` finds an escaped key."""
    text = body.decode(errors="replace")
    try:
        return json.dumps(json.loads(text), ensure_ascii=False)
    except ValueError:
        return text
