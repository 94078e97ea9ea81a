"""A local server that speaks the part of OpenAI's protocol that a judge needs, and answers as a script says."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image


@dataclass(frozen=True)
class Reply:
    """One answer of the server."""

    body: bytes | str = ""
    """Sent as it is; a text becomes the content of a chat completion."""
    status: int = 200
    """HTTP status."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Besides the usual ones."""
    wait_seconds: float = 0.0
    """Before the answer."""
    drop: bool = False
    """Close the connection without an answer."""

    def content(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else completion(self.body)


@dataclass(frozen=True)
class Request:
    """Request of a client."""

    path: str
    headers: Message
    body: dict[str, Any]
    time: float

    @property
    def text(self) -> str:
        """The user's text."""
        (part,) = self._parts("text")
        return str(part["text"])

    @property
    def image(self) -> NDArray[np.uint8]:
        """The picture, [H, W, 3]."""
        (image,) = self.images
        return image

    @property
    def images(self) -> list[NDArray[np.uint8]]:
        """The pictures, [H, W, 3] each."""
        found = []
        for part in self._parts("image_url"):
            kind, _, data = part["image_url"]["url"].partition(",")
            assert kind == "data:image/png;base64"
            found.append(np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))))
        return found

    def _parts(self, kind: str) -> list[dict[str, Any]]:
        return [part for part in self.body["messages"][-1]["content"] if part["type"] == kind]


def completion(content: str | None, finish_reason: str = "stop") -> bytes:
    """A chat completion with this content."""
    message = {"role": "assistant", "content": content}
    choice = {"index": 0, "message": message, "finish_reason": finish_reason}
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "tiny-judge"}
    return json.dumps({**head, "choices": [choice]}).encode()


def first_token(chances: Mapping[str, float]) -> bytes:
    """A chat completion whose first token has these probabilities."""
    listed = [{"token": token, "logprob": math.log(chance), "bytes": None} for token, chance in chances.items()]
    reply = json.loads(completion(next(iter(chances)), "length"))
    reply["choices"][0]["logprobs"] = {"content": [{**listed[0], "top_logprobs": listed}]}
    return json.dumps(reply).encode()


def by_image(request: Request) -> Reply:
    """Well-formed answers by the pixels: for WISE's protocols, probabilities of yes and no, and these words.

    The words depend on the question too.
    """
    digest = hashlib.sha256(request.image.tobytes()).digest()
    if request.body.get("logprobs"):
        yes = (1 + digest[0]) / 512
        return Reply(first_token({"Yes": yes, " no": 0.75 - yes, "I": 0.25}))
    if "yes or no" in request.text:
        both = hashlib.sha256(digest + request.text.encode()).digest()
        return Reply("Yes" if both[0] % 2 else "No")
    if "Aesthetic Quality" in request.text:
        c, r, a = (value % 3 for value in digest[:3])
        return Reply(f"Consistency: {c}\nRealism: {r}\nAesthetic Quality: {a}")
    return Reply(f"Score: {digest[0] % 2}")


def asking(url: str, answers: Path) -> dict[str, Any]:
    """Settings that all scorers with a judge share: it is at `url`, and its answers are kept in a folder."""
    asked = {"judge": "tiny-judge", "request": {}, "base_url": url, "api_key_variable": None}
    limits = {"batch_size": 2, "concurrency": 4, "attempts": 3, "timeout_seconds": 20.0}
    return {**asked, **limits, "answers": str(answers)}


class JudgeServer:
    """Listens on a local port, by default a free one, while it is used as a context manager.

    Attributes:
        replies: Taken one a request to /v1/chat/completions, in the order of arrival, before `answer` is asked.
        answer: Answers the others.
        models: Reply to /v1/models.
        requests: To /v1/chat/completions.
        most_at_once: How many of them were under way at a time.
    """

    def __init__(self, port: int = 0) -> None:
        self.replies = deque[Reply]()
        self.answer: Callable[[Request], Reply] = by_image
        self.models = Reply(json.dumps({"object": "list", "data": [{"id": "tiny-judge"}]}).encode())
        self.requests: list[Request] = []
        self.model_requests: list[Request] = []
        self.most_at_once = self._at_once = 0
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> JudgeServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _reply(self, request: Request) -> Reply:
        with self._lock:
            if request.path == "/v1/models":
                self.model_requests.append(request)
                return self.models
            self.requests.append(request)
            if self.replies:
                return self.replies.popleft()
        return self.answer(request)

    def _count(self, change: int) -> None:
        with self._lock:
            self._at_once += change
            self.most_at_once = max(self.most_at_once, self._at_once)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._respond({})

            def do_POST(self) -> None:
                self._respond(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def _respond(self, body: dict[str, Any]) -> None:
                server._count(1)
                try:
                    reply = server._reply(Request(self.path, self.headers, body, time.monotonic()))
                    time.sleep(reply.wait_seconds)
                    if reply.drop:
                        self.close_connection = True
                        return
                finally:
                    server._count(-1)
                content = reply.content()
                self.send_response(reply.status)
                for name, value in {"Content-Type": "application/json", **reply.headers}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def handle(self) -> None:
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the client gave up or was killed
                    super().handle()

            def log_message(self, *args: object) -> None:
                """Nothing."""

        return Handler
