"""A vision-language model behind an OpenAI-compatible endpoint, asked about many images at once.

Time-outs, waits (Retry-After, else twice as long each time), connections and the protocol are the openai package's.
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
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from chunk_grpo.errors import ChunkGrpoError, ConfigError, DataError, TransientError

if TYPE_CHECKING:
    from openai import AsyncOpenAI, Omit

Result = TypeVar("Result")

_LOG = logging.getLogger(__name__)

_QUOTED = 120
"""Characters of an answer or of a refusal that a message quotes."""


@dataclass(frozen=True)
class Question:
    """What is asked about one image.

    Attributes:
        key: Identifies it.
        label: Names it in messages, such as "WISE prompt 401".
        system: The system message.
        text: The user's message.
        image: uint8 [H, W, 3]; sent after the text, as PNG.
    """

    key: str
    label: str
    system: str
    text: str
    image: NDArray[np.uint8]

    def messages(self) -> list[dict[str, Any]]:
        """In the form of a chat completion."""
        stream = io.BytesIO()
        Image.fromarray(self.image).save(stream, format="PNG", compress_level=1)
        url = "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()
        text = {"type": "text", "text": self.text}
        return [
            {"role": "system", "content": [{"type": "text", "text": self.system}]},
            {"role": "user", "content": [text, {"type": "image_url", "image_url": {"url": url}}]},
        ]


@dataclass(frozen=True)
class Endpoint:
    """Where the judge is and how it is asked.

    Attributes:
        key: Of params.yaml, such as scorers.wise, for messages.
        judge: The model's id.
        url: Up to and with /v1.
        api_key_variable: Environment variable with the key; None: no key is sent.
        request: Fields of every request besides, or instead of, the ones here; None leaves one out.
        max_tokens: Of an answer.
        concurrency: Requests under way at once.
        attempts: Of a request, and of a question.
        timeout_seconds: Of a request.
    """

    key: str
    judge: str
    url: str
    api_key_variable: str | None
    request: Mapping[str, Any]
    max_tokens: int
    concurrency: int
    attempts: int
    timeout_seconds: float


class Judge:
    """Asks the model at an endpoint.

    The key is read from the environment and goes into the requests' Authorization header alone: no message, log record
    or exception of this class holds it, nor what the server says of it.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        """Nothing is read or opened yet."""
        self._endpoint = endpoint

    def check(self) -> None:
        """Ask the endpoint for its models; warn if the judge is not among them.

        Raises:
            ConfigError: The openai package is not installed.
            DataError: The key's variable is not set, or the endpoint refuses the key.
            TransientError: The endpoint does not answer.
        """
        self._find_packages()
        listed = _run(self._list_models)
        if listed is None:
            _LOG.warning("%s does not list its models; %s was not looked for", *self._names())
        elif self._endpoint.judge not in listed:
            others = self._clean(", ".join(sorted(listed)[:8]) or "none")
            _LOG.warning("%s does not list %s, but %s", *self._names(), others)

    def ask(self, questions: Sequence[Question], take: Callable[[Question, str], object]) -> None:
        """Ask every question, several at once.

        A thread of its own waits for the answers, so that this works inside a running event loop, and so that a signal
        handler's exception reaches the caller, whereupon the requests under way are given up.

        Args:
            questions: In any number.
            take: Called with a question and its answer as soon as it is there; raises ValueError for an answer of
                another form than asked for, and the question is asked again.

        Raises:
            ConfigError: The openai package is not installed.
            DataError: The key or a request is refused, or a question got no well-formed answer.
            TransientError: The endpoint fails or is silent.
        """
        self._find_packages()
        _run(self._ask_all, questions, take)

    def _find_packages(self) -> None:
        for package in ("openai", "anyio"):
            if find_spec(package) is None:
                raise ConfigError(
                    f"{self._endpoint.key}: needs {package}, which is not installed; "
                    'pip install "chunk-grpo[scoring]"'
                )

    def _names(self) -> tuple[str, str]:
        return self._endpoint.url, self._endpoint.judge

    def _key(self) -> str:
        """Empty if none is needed."""
        variable = self._endpoint.api_key_variable
        if variable is None:
            return ""
        key = os.environ.get(variable, "").strip()
        if not key:
            raise DataError(
                f"{self._endpoint.key}.api_key_variable: the environment variable {variable} is not set; put the key "
                f"of {self._endpoint.url} into it, or write null if that asks for none."
            )
        if not (key.isascii() and key.isprintable() and " " not in key):
            raise DataError(
                f"{self._endpoint.key}.api_key_variable: the environment variable {variable} holds characters that no "
                "key can have, such as a line break or a letter with an accent."
            )
        return key

    def _client(self) -> AsyncOpenAI:
        from openai import AsyncOpenAI

        return AsyncOpenAI(
            api_key=self._key() or "none",  # or else the package looks for one in the environment
            base_url=self._endpoint.url,
            timeout=self._endpoint.timeout_seconds,
            max_retries=self._endpoint.attempts - 1,
        )

    def _headers(self) -> dict[str, str | Omit]:
        from openai import Omit

        return {} if self._endpoint.api_key_variable else {"Authorization": Omit()}

    async def _list_models(self) -> list[str] | None:
        from openai import APIStatusError

        async def request(client: AsyncOpenAI) -> bytes:
            try:
                return (await client.models.with_raw_response.list(extra_headers=self._headers())).content
            except APIStatusError as error:
                if error.status_code in (404, 405, 501):
                    return b""  # it is there, and keeps no list
                raise

        async with self._client() as client:
            reply = await self._explained("GET /models", request(client))
        try:
            return [str(model["id"]) for model in json.loads(reply)["data"]]
        except (ValueError, KeyError, TypeError):
            return None

    async def _ask_all(self, questions: Sequence[Question], take: Callable[[Question, str], object]) -> None:
        free = asyncio.Semaphore(self._endpoint.concurrency)

        async def ask(client: AsyncOpenAI, question: Question) -> None:
            async with free:
                await self._ask(client, question, take)

        async with self._client() as client:
            tasks = [asyncio.create_task(ask(client, question)) for question in questions]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(
        self, client: AsyncOpenAI, question: Question, take: Callable[[Question, str], object]
    ) -> None:
        messages = await asyncio.to_thread(question.messages)  # PNG takes its time
        attempts = self._endpoint.attempts
        for attempt in range(attempts):
            reply = await self._request(client, question, messages, seed=attempt)
            try:
                take(question, _answer(reply))
                return
            except ValueError as error:
                fault = f"{question.label}: {self._clean(str(error))}; the answer begins {self._quote(reply)}"
            _LOG.warning("attempt %d of %d: %s", attempt + 1, attempts, fault)
        raise DataError(
            f"{self._endpoint.key}: {self._endpoint.judge} gave no answer of the form asked for in {attempts} "
            f"attempts. {fault}. No score was made up. Raise `attempts`, or choose a judge that keeps to the form; the "
            "other answers are kept."
        )

    async def _request(
        self, client: AsyncOpenAI, question: Question, messages: list[dict[str, Any]], seed: int
    ) -> bytes:
        """The reply's body. Another attempt has another seed, for a server that would answer alike."""
        fields = {"temperature": 0.0, "seed": seed, "max_tokens": self._endpoint.max_tokens}
        kept = {k: v for k, v in {**fields, **self._endpoint.request}.items() if v is not None}
        reply = await self._explained(
            question.label,
            client.chat.completions.with_raw_response.create(
                model=self._endpoint.judge,
                messages=messages,  # type: ignore[arg-type]  # built as dicts
                extra_body=kept,
                extra_headers=self._headers(),
            ),
        )
        return reply.content

    async def _explained(self, what: str, request: Awaitable[Result]) -> Result:
        """The request's result; errors of the openai package as this package's, with no trace of those."""
        from openai import APIConnectionError, APIStatusError

        failure: ChunkGrpoError
        try:
            return await request
        except APIStatusError as error:
            failure = self._refusal(what, error.status_code, error.response.content)
        except APIConnectionError as error:
            failure = self._silence(what, f"{error.message} {type(error.__cause__).__name__}")
        raise failure  # not above, where it would carry the error along, and with it the key if a server repeats it

    def _refusal(self, what: str, status: int, body: bytes) -> ChunkGrpoError:
        endpoint = self._endpoint
        said = f"{endpoint.url} answered {status} to {what}"
        if status in (401, 403):
            variable = endpoint.api_key_variable
            mend = (
                f"Put a key that may use {endpoint.judge} into the environment variable {variable}."
                if variable
                else f"Name the environment variable with the key in {endpoint.key}.api_key_variable."
            )
            return DataError(f"{endpoint.key}: {said}: the key is missing, wrong, or may not do this. {mend}")
        said = f"{said}: {self._quote(body)}"
        if status in (408, 409, 429) or status >= 500:
            return self._silence(what, said)
        return DataError(
            f"{endpoint.key}: {said}. See that base_url goes up to /v1, that {endpoint.judge} is the id of a model "
            "there that sees images, and whether `request` must leave out or replace a field (null leaves it out)."
        )

    def _silence(self, what: str, reason: str) -> TransientError:
        endpoint = self._endpoint
        return TransientError(
            f"{endpoint.key}: no answer from {endpoint.url} to {what} after {endpoint.attempts} attempts of "
            f"{endpoint.timeout_seconds:g} s at most ({reason}). See that the server runs and can be reached, or lower "
            "`concurrency` if it limits requests; then run the same command again. Answers that came are kept."
        )

    def _quote(self, body: bytes) -> str:
        """The beginning of what a server sent."""
        try:
            text = _answer(body)
        except ValueError:
            text = body.decode(errors="replace")
        return repr(self._clean(text)[:_QUOTED])

    def _clean(self, text: str) -> str:
        """Without the key, which some servers repeat."""
        key = self._key()
        return text.replace(key, "***") if key else text


def _answer(reply: bytes) -> str:
    """The judge's words in a chat completion.

    Raises:
        ValueError: There are none; says what the server gave as the reason.
    """
    try:
        choice = json.loads(reply)["choices"][0]
        content, reason = choice["message"]["content"], choice.get("finish_reason")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise ValueError(f"the reply is no chat completion ({type(error).__name__})") from error
    if not isinstance(content, str) or not content.strip():
        raise ValueError(f"the answer is empty (finish_reason {reason!r})")
    return content


def _run(function: Callable[..., Coroutine[Any, Any, Result]], *arguments: Any) -> Result:
    """Run a coroutine in an event loop of a thread of its own; an exception that comes here meanwhile ends it."""
    from anyio.from_thread import start_blocking_portal

    with start_blocking_portal() as portal:
        result: Result = portal.call(function, *arguments)
        return result
