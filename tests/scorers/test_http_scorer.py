"""The client of a scoring server: a server that is away, crashes, hangs, or is or answers something else."""

import json
import shlex
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from chunk_grpo.errors import ConfigError, DataError, TransientError
from chunk_grpo.scorers import serve
from chunk_grpo.scorers.executors.messages import worker_for
from chunk_grpo.scorers.running.external import External
from chunk_grpo.scorers.workers.worker_protocol.messages import ready_message
from tests.params_edits import problems, put
from tests.scorers.odd_scorers import KEY, batch, settings
from tests.scorers.servers import client, server_in_thread
from tests.scorers.test_server import Gated


def test_hanging_server_times_out() -> None:
    hanging = Gated()
    with server_in_thread(hanging) as url:
        client(url).check()  # the scorer is loaded, which takes its time on a busy machine
        scorer = client(url, timeout_seconds=0.5)
        scorer.check()
        start = time.monotonic()
        with pytest.raises(TransientError, match=r"did not answer within 0.5 s \(ReadTimeout\)"):
            scorer.score(batch())
        assert 0.4 < time.monotonic() - start < 10
        hanging.may_end.release()


def test_rejects_answers_of_foreign_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """test_messages.py has what makes an answer strange."""
    ready = ready_message(worker_for(External(KEY, settings())))
    scores = {"type": "scores", "spec_hash": ready["spec_hash"], "values": [1.0] * 3, "details": {}, "refused": {}}
    for answer, said in (
        (lambda question: None, "is no scoring server: status 200, must be a JSON object"),
        (lambda question: {**ready, "version": 2}, r"must be odd .*, but .* the server at .* is odd \(version 2"),
        (lambda question: scores | {"id": "another"} if question else ready, "answered another question: id must be"),
        (lambda question: scores | {"id": question["id"]} if question else ready, "needs one value for each of 4"),
    ):

        def request(*arguments: Any, content: Any, answer: Any = answer, **options: Any) -> httpx.Response:
            return httpx.Response(200, content=json.dumps(answer(json.load(content) if content else None)))

        monkeypatch.setattr(httpx.Client, "request", request)
        with pytest.raises(DataError, match=said):
            client("http://127.0.0.1:1").score(batch())


def test_invalid_url_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match=r"executors.odd.url: must be a URL, got 'http://a..b'"):
        client("http://a..b").check()


@pytest.mark.parametrize(
    "url", ["http://192.0.2.1:8901?wait=1", "http://192.0.2.1#a", "192.0.2.1:8901", "http://", "http://host:99999"]
)
def test_an_address_with_a_query_or_without_a_host_is_refused(url: str) -> None:
    rule = "must be http:// or https:// with a host, and no user, password, query or fragment"
    executor = {"kind": "http", "url": url, "token_variable": None, "timeout_seconds": 10.0}
    assert problems(put("executors.shapes-exact", executor)) == [
        f"executors.shapes-exact.url: {rule} (store secrets in an environment variable and name it with another key), "
        f"got {url!r}"
    ]


def test_rejects_invalid_environment_variable_name() -> None:
    executor = {"kind": "http", "url": "http://a", "token_variable": "my-token", "timeout_seconds": 10.0}
    assert problems(put("executors.shapes-exact", executor)) == [
        "executors.shapes-exact.token_variable: must be the name of an environment variable: letters, digits and _, "
        "no digit first, got 'my-token'"
    ]


@pytest.mark.parametrize(
    ("url", "variable", "command"),
    [
        ("http://localhost:1", "A_TOKEN", "--port 1 --token-variable A_TOKEN"),
        ("http://[2001:db8::1]", "A_TOKEN", "--host 2001:db8::1 --port 80 --token-variable A_TOKEN"),
        ("http://192.0.2.1:7", None, "--host 192.0.2.1 --port 7 --token-variable VARIABLE"),
        ("https://192.0.2.1:7", None, ""),
    ],
)
def test_the_command_that_is_proposed_starts_a_server(
    params: Path, monkeypatch: pytest.MonkeyPatch, url: str, variable: str | None, command: str
) -> None:
    """The server's own command line takes it; with TLS the server listens behind a proxy, at its own port."""
    started: list[tuple[str, int]] = []
    monkeypatch.setattr(serve, "serve", lambda scorer, at, limits: started.append(at))
    for name in ("A_TOKEN", "VARIABLE"):
        monkeypatch.setenv(name, "a-token")

    def unreachable(*arguments: object, **options: object) -> None:
        raise httpx.ConnectError("nobody listens")

    monkeypatch.setattr(httpx.Client, "request", unreachable)
    with pytest.raises(TransientError) as caught:
        client(url, token_variable=variable).check()
    assert f"scorer odd: the server at {url} does not answer (ConnectError: nobody listens). Start" in str(caught.value)
    proposed = shlex.split(str(caught.value).split("`")[1])
    assert proposed == ["chunk-grpo", "serve-scorer", KEY, *command.split()]
    assert serve.main([*proposed[2:], "--params", str(params)]) == 0
    assert len(started) == 1


def test_the_client_does_not_send_what_is_too_large() -> None:
    too_large = r"takes 0\.0 MB at a time, and a batch makes 0\.1 MB: start it with a larger --most-megabytes"
    with (
        server_in_thread(External(KEY, settings()), most_bytes=20_000) as url,
        pytest.raises(DataError, match=too_large),
    ):
        client(url).score(batch(size=64))
