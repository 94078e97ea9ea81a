"""The scoring server: which requests are answered, which refused, in which order, and what an error says."""

import logging
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx
import numpy as np
import pytest

from chunk_grpo.errors import ConfigError, TransientError
from chunk_grpo.scorers.base import ScoreBatch, Scores
from chunk_grpo.scorers.executors.messages import encode_batch
from chunk_grpo.scorers.running.external import External
from chunk_grpo.scorers.running.fingerprint import scoring_settings
from chunk_grpo.scorers.workers.worker_protocol.requests import RequestHandler
from tests.scorers.odd_scorers import KEY, batch, settings
from tests.scorers.servers import client, server_in_thread
from tests.waiting import wait_for

TOKEN = "an-open-secret-4711"
VARIABLE = "SCORING_TOKEN"
HEADER = {"Authorization": f"Bearer {TOKEN}"}


class Gated(External):
    """Says when it has begun a call, and ends it when told to."""

    def __init__(self) -> None:
        super().__init__(KEY, settings())
        self.begun, self.may_end, self.closed = threading.Semaphore(0), threading.Semaphore(0), False
        self.calls: list[ScoreBatch] = []

    def score(self, batch: ScoreBatch) -> Scores:
        self.calls.append(batch)
        self.begun.release()
        assert self.may_end.acquire(timeout=10)
        return super().score(batch)

    def close(self) -> None:
        self.closed = True


def expected(pictures: ScoreBatch) -> list[float]:
    values: list[float] = External(KEY, settings()).score(pictures).values.tolist()
    return values


@pytest.fixture
def url() -> Iterator[str]:
    scorer = External(KEY, settings())
    with server_in_thread(scorer, held_bytes=10**6, most_bytes=20_000) as url:
        client(url).check()
        yield url


def head(size: int) -> bytes:
    return b"POST /score HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % size


def connected(url: str, sent: bytes) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=10)
    connection.sendall(sent)
    return connection


class TestHealth:
    def test_health_reports_identity_and_queue(self) -> None:
        scorer = External(KEY, settings())
        with server_in_thread(scorer, held_bytes=10**7, most_bytes=10**6) as url:
            client(url).check()
            health = httpx.get(f"{url}/health")
        about = health.json()
        assert health.status_code == 200
        assert about.pop("packages")["numpy"] == np.__version__
        assert about.pop("python").startswith("3.")
        assert about == {
            "type": "ready",
            "state": "ready",
            "scoring_seconds": None,
            "protocol": 3,
            "name": KEY,
            "version": 1,
            "needs": ["metadata", "prompt"],
            "groupwise": False,
            "spec_hash": scorer.spec_hash(),
            "measured": scoring_settings(settings()),
            "queue": 0,
            "held_bytes": 10**7,
            "most_bytes": 10**6,
        }

    def test_loading_server_answers_503_and_clients_wait(self, pool: ThreadPoolExecutor) -> None:
        class Slow(External):
            may_end = threading.Event()

            def check(self) -> None:
                assert self.may_end.wait(10)

        with server_in_thread(Slow(KEY, settings())) as url:
            health = httpx.get(f"{url}/health")
            asked = httpx.post(f"{url}/score", content=encode_batch(batch(), "a question"))
            for answer in (health, asked):
                assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
            with pytest.raises(TransientError, match=r"was busy for 0.3 s: the scorer is loading"):
                client(url, timeout_seconds=0.3).check()
            scores = pool.submit(client(url).score, batch())
            time.sleep(0.1)
            Slow.may_end.set()
            assert scores.result().values.tolist() == expected(batch())


class TestQueue:
    def test_full_server_sends_retry_after_and_client_retries(self, pool: ThreadPoolExecutor) -> None:
        scorer = Gated()
        held = sum(len(encode_batch(batch(count=count), "0" * 32)) for count in (1, 2))
        with server_in_thread(scorer, held_bytes=held, most_bytes=10**6) as url:
            first = pool.submit(client(url).score, batch(count=1))
            assert scorer.begun.acquire(timeout=5)
            second = pool.submit(client(url).score, batch(count=2))
            wait_for(lambda: httpx.get(f"{url}/health").json()["queue"] == 2, 5.0, "the server")
            refused = httpx.post(f"{url}/score", content=encode_batch(batch(), "a question"))
            assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
            assert refused.json() == {
                "type": "refused",
                "message": f"the queue is full (2 batches, {held} of {held} bytes); retry later",
            }
            with pytest.raises(TransientError, match=r"was busy for 0.5 s: the queue is full \(2 batches"):
                client(url, timeout_seconds=0.5).score(batch())
            third = pool.submit(client(url).score, batch(count=3))
            time.sleep(0.2)
            scorer.may_end.release(3)
            for count, scores in enumerate((first, second, third), 1):
                assert scores.result().values.tolist() == expected(batch(count=count))
        assert [len(call) for call in scorer.calls] == [1, 2, 3]
        assert scorer.closed

    def test_a_batch_whose_client_has_left_is_not_scored(self, pool: ThreadPoolExecutor) -> None:
        scorer = Gated()
        with server_in_thread(scorer) as url:
            first = pool.submit(client(url).score, batch(count=1))
            assert scorer.begun.acquire(timeout=5)
            with pytest.raises(TransientError, match=r"did not answer within 0\.3 s"):
                client(url, timeout_seconds=0.3).score(batch(count=2))
            wait_for(lambda: httpx.get(f"{url}/health").json()["queue"] == 1, 5.0, "the server")
            scorer.may_end.release(2)
            first.result()
            client(url).score(batch(count=3))
        assert [len(call) for call in scorer.calls] == [1, 3]


class TestRequests:
    def test_rejects_malformed_request(self, url: str) -> None:
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

    def test_a_refused_client_can_send_all_before_it_reads(self, url: str) -> None:
        """Closing a connection with unread bytes would reset it, and take the answer away."""
        with connected(url, head(9_000_000) + b" " * 9_000_000) as connection:
            assert connection.recv(1000).startswith(b"HTTP/1.1 413")

    def test_incomplete_request_leaves_the_queue(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(RequestHandler, "timeout", 0.3)
        with connected(url, head(100) + b"{") as connection:
            assert b"408" in connection.recv(1000)
        assert httpx.get(f"{url}/health").json()["queue"] == 0

    def test_announced_but_unsent_bodies_hold_no_memory(self, url: str) -> None:
        with ExitStack() as stack:
            for _ in range(60):  # together more than the server holds
                stack.enter_context(connected(url, head(20_000)))
            wait_for(lambda: httpx.get(f"{url}/health").json()["queue"] == 60, 5.0, "the server")
            assert client(url).score(batch()).values.tolist() == expected(batch())

    def test_unfinished_head_closes_connection(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        assert RequestHandler.timeout == 30.0
        monkeypatch.setattr(RequestHandler, "timeout", 0.3)
        whole = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        for first, sent in ((b"", b""), (b"", head(1)[:-4]), (whole, b"GET /hea")):
            with connected(url, first) as connection:
                if first:
                    assert connection.recv(10_000).startswith(b"HTTP/1.1 200")
                connection.sendall(sent)
                while connection.recv(10_000):
                    pass

    def test_without_a_token_only_hosts_of_this_machine_are_answered(self, url: str) -> None:
        line = encode_batch(batch(), "a question")
        for host in ("evil.example", "127.0.0.1.evil.example:80", "", "[", "localhost.evil"):
            refused = httpx.post(f"{url}/score", headers={"Host": host}, content=line)
            assert refused.status_code == 400
            assert refused.json()["message"].startswith("without a token the host must be a loopback address")
        for host in ("localhost", "localhost:1", "127.0.0.1:99", "[::1]:8901"):
            assert httpx.get(f"{url}/health", headers={"Host": host}).status_code == 200

    def test_an_answer_of_an_error_has_no_traceback_and_no_folders(
        self, url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def score(self: External, batch: ScoreBatch) -> Scores:
            raise OSError("/srv/secret/models/a.pt: broken, see https://host/a/b and 'x/y' or ~/z/w.yaml")

        monkeypatch.setattr(External, "score", score)
        answer = httpx.post(f"{url}/score", content=encode_batch(batch(), "a question"))
        assert answer.status_code == 500
        assert answer.json()["message"] == "a.pt: broken, see https://host/a/b and 'x/y' or w.yaml"
        assert not {"traceback", "/srv", __file__} & {*answer.json(), answer.text}
        assert "/srv/secret" in caplog.text and "Traceback" in caplog.text


class TestToken:
    def test_requires_token(self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        with server_in_thread(External(KEY, settings()), token=TOKEN) as url:
            wait_for(lambda: httpx.get(f"{url}/health", headers=HEADER).is_success, 5.0, "the server")
            messages = self.messages_of(url, monkeypatch)
            scorer = client(url, token_variable=VARIABLE)
            assert scorer.score(batch()).values.tolist() == expected(batch())
        with pytest.raises(TransientError) as gone:
            client(url, token_variable=VARIABLE).score(batch())
        assert f"--token-variable {VARIABLE}`" in str(gone.value)
        assert "4 images in" in caplog.text
        assert TOKEN not in "".join([caplog.text, *messages, str(gone.value), repr(scorer)])

    def messages_of(self, url: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Messages of clients without the token. Then it is set."""
        line = encode_batch(batch(), "a question")
        for header in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}):
            assert httpx.get(f"{url}/health", headers=header).status_code == 401
            assert httpx.post(f"{url}/score", headers=header, content=line).status_code == 401
        with pytest.raises(
            ConfigError, match=r"asks for a token: name its environment variable in executors\.odd\.tok"
        ):
            client(url).check()
        messages = []
        for value, words in (
            ("wrong-" + TOKEN, f"refuses the token in {VARIABLE} (executors.odd.token_variable)"),
            ("", f"executors.odd.token_variable: the environment variable {VARIABLE} is not set or empty"),
            (TOKEN + "\n", f"executors.odd.token_variable: the token in {VARIABLE} must consist of visible"),
        ):
            monkeypatch.setenv(VARIABLE, value)
            with pytest.raises(ConfigError) as caught:
                client(url, token_variable=VARIABLE).check()
            assert words in str(caught.value)
            messages.append(str(caught.value))
        monkeypatch.setenv(VARIABLE, TOKEN)
        return messages
