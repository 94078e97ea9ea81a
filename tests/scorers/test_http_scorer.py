"""The client of a scoring server: a server that is away, crashes, hangs, or is or answers something else."""

import json
import shlex
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from chunk_grpo.errors import ConfigError, DataError, TransientError
from chunk_grpo.scorers import serve
from tests.params_edits import problems, put
from tests.scorers.odd_scorers import KEY, batch, settings
from tests.scorers.servers import ServerProcess, client, write_params


@pytest.fixture(scope="module")
def params(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_params(tmp_path_factory.mktemp("server") / "params.yaml", KEY, settings())


def test_a_crash_or_a_missing_server_is_told_with_the_command_that_starts_it(params: Path) -> None:
    with ServerProcess(params, KEY) as server:
        scorer = client(server.url)
        scorer.check()
        port = server.url.rsplit(":", 1)[1]
        command = f"Start it there: `python -m chunk_grpo.scorers.serve odd --port {port}`"
        for _ in range(2):  # it crashes; then nobody listens
            with pytest.raises(TransientError) as caught:
                scorer.score(batch("exit"))
            assert f"the server at {server.url} does not answer (" in str(caught.value)
            assert command in str(caught.value)
        assert server.process.wait(5.0) == 7
        scorer.close()


def test_a_hanging_one_is_given_up_after_the_time_out(params: Path) -> None:
    with ServerProcess(params, KEY) as server:
        client(server.url).score(batch())  # the first batch loads the model, however long that takes
        scorer = client(server.url, timeout_seconds=0.5)
        scorer.check()
        start = time.monotonic()
        with pytest.raises(TransientError, match=r"did not answer within 0.5 s \(ReadTimeout\)"):
            scorer.score(batch("hang"))
        assert 0.4 < time.monotonic() - start < 10
        scorer.close()


READY = {
    "type": "ready",
    "state": "ready",
    "protocol": 1,
    "name": KEY,
    "version": 1,
    "needs": [],
    "groupwise": False,
    "spec_hash": "abc",
    "measured": {},
    "python": "3",
    "packages": {},
}


@pytest.fixture
def strange_server() -> Iterator[tuple[str, dict[str, Any]]]:
    """A server whose answers are changed by a test: `health` and `answer` are functions of the right one."""
    changes: dict[str, Any] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.reply({**READY, **changes.get("health", {})})

        def do_POST(self) -> None:
            question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            keys = [row["key"] for row in question["rows"]]
            answer = {"type": "scores", "id": question["id"], "spec_hash": "abc", "keys": keys, "details": {}}
            answer["values"] = [1.0] * len(keys)
            self.reply(changes["answer"](answer) if "answer" in changes else answer)

        def reply(self, message: object) -> None:
            content = message if isinstance(message, bytes) else json.dumps(message).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", changes
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "other"}, r"scorers.odd: must be odd \(version 1\), but .* is other \(version 1"),
        ({"version": 2}, r"scorers.odd: must be odd \(version 1\), but .* is odd \(version 2"),
        (
            {"measured": {"kind": "external", "version": 7}},
            r"scorers.odd.version: is 1 here, but 7 for .*the server at .* Use the same section of scorers",
        ),
        ({"protocol": 2}, "expected a ready message of protocol 1"),
        ({"needs": ["sound"]}, "needs must be among prompt, metadata, got sound"),
        ({"spec_hash": None, "packages": None}, "sent a malformed ready message"),
    ],
)
def test_another_scorer_is_refused(
    strange_server: tuple[str, dict[str, Any]], change: dict[str, Any], words: str
) -> None:
    url, changes = strange_server
    client(url).check()
    changes["health"] = change
    with pytest.raises(DataError, match=words):
        client(url).check()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda m: {**m, "spec_hash": "restarted"},
            "another question: spec_hash must be 'abc', got 'restarted'",
        ),
        (lambda m: {**m, "keys": m["keys"][::-1]}, "another question: keys must be"),
        (lambda m: {**m, "id": "earlier"}, "another question: id must be"),
        (lambda m: {**m, "values": "many"}, "sent malformed scores"),
        (lambda m: b"<html>", "is no scoring server: status 200, not JSON"),
    ],
)
def test_an_answer_to_another_question_is_never_used(
    strange_server: tuple[str, dict[str, Any]], change: Callable[[Any], Any], words: str
) -> None:
    url, changes = strange_server
    scorer = client(url)
    assert scorer.score(batch()).values.tolist() == [1.0] * 4
    changes["answer"] = change
    with pytest.raises(DataError, match=words):
        scorer.score(batch())


def test_an_address_that_is_none_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match=r"executors.odd.url: must be a URL, got 'http://a..b'"):
        client("http://a..b").check()


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("http://user:hunter2@192.0.2.1:8901", "http://***@192.0.2.1:8901"),
        ("https://user:hun@ter2@scores.example", "https://***@scores.example"),
        ("http://hunter2@192.0.2.1", "http://***@192.0.2.1"),
        ("http://192.0.2.1:8901?wait=1", "http://192.0.2.1:8901?wait=1"),
        ("http://192.0.2.1:8901#a", "http://192.0.2.1:8901#a"),
        ("192.0.2.1:8901", "192.0.2.1:8901"),
        ("http://", "http://"),
        ("http://host:port", "http://host:port"),
        ("http://host:99999", "http://host:99999"),
    ],
)
def test_an_address_with_a_user_or_a_query_is_refused_and_its_password_not_told(url: str, told: str) -> None:
    rule = "must be http:// or https:// with a host, and no user, password, query or fragment"
    executor = {"kind": "http", "url": url, "token_variable": None, "timeout_seconds": 10.0}
    assert problems(put("executors.shapes-exact", executor)) == [
        f"executors.shapes-exact.url: {rule} (store secrets in an environment variable and name it with another key), "
        f"got {told!r}"
    ]


def test_a_name_that_no_environment_variable_has_is_refused() -> None:
    executor = {"kind": "http", "url": "http://a", "token_variable": "my-token", "timeout_seconds": 10.0}
    assert problems(put("executors.shapes-exact", executor)) == [
        "executors.shapes-exact.token_variable: must be the name of an environment variable: letters, digits and _, "
        "no digit first, got 'my-token'"
    ]


@pytest.mark.parametrize(
    ("url", "variable", "command"),
    [
        ("http://127.0.0.1:1", None, ["--port", "1"]),
        ("http://localhost:1", "A_TOKEN", ["--port", "1", "--token-variable", "A_TOKEN"]),
        (
            "http://192.0.2.1",
            "A_TOKEN",
            ["--host", "192.0.2.1", "--port", "80", "--token-variable", "A_TOKEN"],
        ),
        (
            "http://[2001:db8::1]:7",
            "A_TOKEN",
            ["--host", "2001:db8::1", "--port", "7", "--token-variable", "A_TOKEN"],
        ),
        ("http://192.0.2.1:7", None, ["--host", "192.0.2.1", "--port", "7", "--token-variable", "VARIABLE"]),
        ("https://192.0.2.1:7", None, []),
        ("https://192.0.2.1", "A_TOKEN", ["--token-variable", "A_TOKEN"]),
    ],
)
def test_the_command_that_is_proposed_starts_a_server(
    params: Path, monkeypatch: pytest.MonkeyPatch, url: str, variable: str | None, command: list[str]
) -> None:
    """The server's own command line takes it; with TLS the server listens behind a proxy, at its own port."""
    started: list[tuple[str, int]] = []
    monkeypatch.setattr(
        "chunk_grpo.scorers.executors.http_server.serve", lambda s, at, limits, merge: started.append(at) or 0
    )
    for name in ("A_TOKEN", "VARIABLE"):
        monkeypatch.setenv(name, "a-token")
    scorer = client(url, token_variable=variable)
    monkeypatch.setattr(scorer, "_connected", unreachable)
    with pytest.raises(TransientError) as caught:
        scorer.check()
    message = str(caught.value)
    proposed = shlex.split(message.split("`")[1])
    assert proposed == ["python", "-m", "chunk_grpo.scorers.serve", KEY, *command]
    assert serve.main([*proposed[3:], "--params", str(params)]) == 0
    assert len(started) == 1
    assert ("put a token into VARIABLE" in message) == ("VARIABLE" in command)
    assert (f"executors.{KEY}.token_variable" in message) == ("VARIABLE" in command)
    assert ("the server speaks no TLS: a proxy at https://192.0.2.1" in message) == url.startswith("https")


def unreachable() -> None:
    raise httpx.ConnectError("nobody listens")
