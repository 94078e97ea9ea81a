"""Bodies and heads that no client of ours sends: answered with a reason, without a traceback or a silence. Seeded."""

import json
import random
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from chunk_grpo.scorers.base import ScoreBatch
from chunk_grpo.scorers.executors.messages import encode_batch
from tests.scorers.servers import server_in_thread
from tests.shapes_scorers import shapes_scorer

RECORD = {"tag": "colors", "include": [{"class": "circle", "count": 1, "color": "red"}]}
VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 1, 2**70, 0.5, float("nan"), float("inf")),
    *("", "a\u0000\ud800", "AAAA", "4", [], [[]], {}, {"a": None}, [0] * 50, {"include": []}),
)
PATHS: tuple[tuple[str | int, ...], ...] = (
    *((key,) for key in ("type", "id", "height", "width", "rows", "other")),
    *(("rows", 0, key) for key in ("prompt", "metadata", "group", "pixels", "other")),
    *(("rows", 0), ("rows", 0, "metadata", "include"), ("rows", 0, "metadata", "tag")),
)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with server_in_thread(shapes_scorer("shapes-exact"), held_bytes=10**6, most_bytes=10**5) as url:
        end = time.monotonic() + 20
        while httpx.get(f"{url}/health").status_code != 200:
            assert time.monotonic() < end
            time.sleep(0.05)
        yield url


def good() -> dict[str, Any]:
    images = np.random.default_rng(0).integers(0, 256, (2, 16, 16, 3), dtype=np.uint8)
    line = encode_batch(ScoreBatch(images, ["a red circle"] * 2, [RECORD] * 2, [0, 0]), "a question")
    message: dict[str, Any] = json.loads(line)
    return message


def put(message: Any, path: tuple[str | int, ...], value: object) -> None:
    *above, last = path
    for key in above:
        message = message[key]
    message[last] = value


def checked(answer: httpx.Response) -> int:
    """Status of an answer, which is one of ours and tells nothing about the machine."""
    assert answer.status_code in (200, 400, 411, 413, 500), answer.text
    assert answer.json()["type"] in ("scores", "refused", "error")
    assert not any(words in answer.text for words in ("Traceback", ".py", "site-packages", "traceback"))
    return answer.status_code


def test_random_value_in_any_field_is_scored_or_rejected(url: str) -> None:
    random_, statuses = random.Random(47), []
    with httpx.Client() as client:
        assert checked(client.post(f"{url}/score", content=json.dumps(good()))) == 200
        for path in PATHS:
            for value in random_.sample(VALUES, 5):
                message = good()
                put(message, path, value)
                statuses.append(checked(client.post(f"{url}/score", content=json.dumps(message))))
    assert statuses.count(400) > len(statuses) / 2


def test_damaged_bodies_are_scored_or_rejected(url: str) -> None:
    random_, line = random.Random(48), json.dumps(good()).encode()
    with httpx.Client() as client:
        for _ in range(60):
            body = bytearray(line)
            for _ in range(random_.choice((1, 3, 40))):
                body[random_.randrange(len(body))] = random_.randrange(256)
            checked(client.post(f"{url}/score", content=bytes(body[: random_.choice((len(body), 99, 0))])))
        deep = b'{"rows":' + b"[" * 40_000 + b"]" * 40_000 + b"}"
        assert checked(client.post(f"{url}/score", content=deep)) == 400


def test_malformed_head_closes_connection(url: str) -> None:
    random_ = random.Random(49)
    host, port = url.removeprefix("http://").split(":")
    heads = [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /score HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /score HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"POST /score HTTP/1.1\r\nHost: a\r\nHost: b\r\nContent-Length: 0\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: " + b"a" * 70_000 + b"\r\n\r\n",
        *(random_.randbytes(200) + b"\r\n\r\n" for _ in range(20)),
    ]
    for head in heads:
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            connection.sendall(head)
            connection.shutdown(socket.SHUT_WR)
            answer = connection.recv(10_000)
            assert not answer or answer.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4")), answer
    assert httpx.get(f"{url}/health").json()["queue"] == 0
