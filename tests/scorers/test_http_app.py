"""Requests to the scoring server: which are answered, which refused, and what an error says."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

from chunk_grpo.errors import DataError
from chunk_grpo.scorers.base import ScoreBatch, Scores
from chunk_grpo.scorers.executors.http_app import Limits
from chunk_grpo.scorers.executors.messages import encode_batch
from chunk_grpo.scorers.running.external import External
from tests.scorers.odd_scorers import KEY, batch, settings
from tests.scorers.servers import client, server_in_thread
from tests.scorers.test_serve import expected, wait_for


@pytest.fixture
def url() -> Iterator[str]:
    scorer = External(KEY, settings())
    with server_in_thread(scorer, Limits(held_bytes=10**6, most_bytes=20_000, token=None)) as url:
        client(url).check()
        yield url


def test_rejects_malformed_request(url: str) -> None:
    for content, status, reason in (
        (b"hello", 400, "not JSON: "),
        (b"[]", 400, "must be a JSON object, got list"),
        (b"{}", 400, "no batch of images: KeyError: 'height'"),
        (b" " * 3_000_000, 413, "the body must have at most 20000 bytes, got 3000000"),
        (iter([b"{}"]), 411, "the request must have a Content-Length"),
    ):
        response = httpx.post(f"{url}/score", content=content)
        assert response.status_code == status
        assert response.json()["message"].startswith(reason)
    assert httpx.get(f"{url}/score").status_code == 405
    assert httpx.get(f"{url}/").status_code == 404
    assert client(url).score(batch()).values.tolist() == expected(batch())


def test_incomplete_request_leaves_the_queue(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chunk_grpo.scorers.executors.http_app._SILENT_SECONDS", 0.2)
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"POST /score HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        wait_for(lambda: httpx.get(f"{url}/health").json()["queue"] == 1)
        assert b"408" in connection.recv(1000)
    assert httpx.get(f"{url}/health").json()["queue"] == 0


def test_announced_but_unsent_bodies_hold_no_memory(url: str) -> None:
    host, port = url.removeprefix("http://").split(":")
    head = b"POST /score HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20000\r\n\r\n"
    with ExitStack() as stack:
        for _ in range(60):  # together more than the server holds
            stack.enter_context(socket.create_connection((host, int(port)))).sendall(head)
        wait_for(lambda: httpx.get(f"{url}/health").json()["queue"] == 60)
        assert client(url).score(batch()).values.tolist() == expected(batch())


def test_unfinished_head_closes_connection(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chunk_grpo.scorers.executors.http_server._HEADER_SECONDS", 0.3)
    host, port = url.removeprefix("http://").split(":")
    whole = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for first, sent in (
        (b"", b""),
        (b"", b"POST /score HTTP/1.1\r\nHost: x\r\nA: "),
        (whole, b"GET /hea"),
    ):
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            connection.sendall(first)
            if first:
                assert connection.recv(10_000).startswith(b"HTTP/1.1 200")
            connection.sendall(sent)
            while connection.recv(10_000):
                pass


def test_without_a_token_only_hosts_of_this_machine_are_answered(url: str) -> None:
    line = encode_batch(batch(), "a question")
    for host in ("evil.example", "127.0.0.1.evil.example:80", "", "[", "localhost.evil"):
        refused = httpx.post(f"{url}/score", headers={"Host": host}, content=line)
        assert refused.status_code == 400
        assert refused.json()["message"].startswith("without a token the host must be a loopback address")
    for host in ("localhost", "localhost:1", "127.0.0.1:99", "[::1]:8901"):
        assert httpx.get(f"{url}/health", headers={"Host": host}).status_code == 200


def test_an_answer_of_an_error_has_no_traceback_and_no_folders(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def score(self: External, batch: ScoreBatch) -> Scores:
        raise OSError("/srv/secret/models/a.pt: broken, see https://host/a/b and 'x/y' or ~/z/w.yaml")

    monkeypatch.setattr(External, "score", score)
    answer = httpx.post(f"{url}/score", content=encode_batch(batch(), "a question"))
    assert answer.status_code == 500
    assert answer.json()["message"] == "a.pt: broken, see https://host/a/b and 'x/y' or w.yaml"
    assert not {"traceback", "/srv", __file__} & {*answer.json(), answer.text}
    assert "/srv/secret" in caplog.text and "Traceback" in caplog.text


def test_the_client_does_not_send_what_is_too_large(url: str) -> None:
    with pytest.raises(DataError) as caught:
        client(url).score(batch(size=64))
    assert str(caught.value).startswith(
        f"scorer odd: the server at {url} takes 0.0 MB at a time, and a batch makes 0.1 MB: start it with a larger "
        "--most-megabytes"
    )
