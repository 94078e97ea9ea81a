"""The command that serves a scorer: its options, and how it ends."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from chunk_grpo.__main__ import call
from chunk_grpo.errors import DataError, TransientError
from chunk_grpo.scorers.base import Scores
from chunk_grpo.scorers.running.external import External
from tests.scorers.odd_scorers import KEY, batch
from tests.scorers.servers import ServerProcess, client
from tests.scorers.test_server import TOKEN, VARIABLE, expected
from tests.waiting import wait_for

Start = Callable[..., tuple[ServerProcess, Future[Scores]]]


@pytest.fixture
def start(params: Path, pool: ThreadPoolExecutor, tmp_path: Path) -> Iterator[Start]:
    """Starts servers as processes, which end with the test and score a batch for some seconds."""
    with ExitStack() as stack:

        def started(seconds: float, *options: str) -> tuple[ServerProcess, Future[Scores]]:
            server = stack.enter_context(ServerProcess(params, KEY, *options))
            slow = batch("slow", seconds=seconds, begun=str(tmp_path / "begun"))
            asked = pool.submit(client(server.url).score, slow)
            wait_for((tmp_path / "begun").exists, 5.0, "the server")
            return server, asked

        yield started


class TestOptions:
    @pytest.mark.parametrize(
        ("command", "message"),
        [
            ((KEY, "--host", "0.0.0.0"), "--host: without a token a server listens on this machine only"),
            ((KEY, "--host", "::"), "--host: without a token"),
            ((KEY, "--held-megabytes", "100"), "--held-megabytes: must be at least --most-megabytes (512), got"),
            ((KEY, "--token-variable", "UNSET"), "--token-variable: the environment variable UNSET is not"),
            ((KEY, "--port", "70000"), "--host, --port: cannot listen on "),
            (
                (KEY, "--host", "no.such.host.invalid", "--token-variable", VARIABLE),
                "--host, --port: cannot listen on ",
            ),
            (("strange",), "NAME: must be one of scorers in {params}: shapes-exact, "),
        ],
    )
    def test_rejects_invalid_serve_options(
        self,
        params: Path,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
        command: tuple[str, ...],
        message: str,
    ) -> None:
        monkeypatch.setenv(VARIABLE, TOKEN)
        assert call("serve-scorer", [*command, "--params", str(params)]) == 2
        assert capsys.readouterr().err.startswith("error: " + message.format(params=params))


class TestEnd:
    def test_sigterm_lets_the_running_batch_end_and_refuses_those_that_wait(
        self, start: Start, pool: ThreadPoolExecutor
    ) -> None:
        server, running = start(1.5)
        waiting = pool.submit(client(server.url).score, batch())
        wait_for(lambda: httpx.get(f"{server.url}/health").json()["queue"] == 2, 5.0, "the server")
        server.process.send_signal(signal.SIGTERM)
        assert running.result().values.tolist() == expected(batch())
        with pytest.raises(TransientError, match="the scoring server is shutting down; it did not score this batch"):
            waiting.result()
        assert server.process.wait(5.0) == 0

    def test_second_sigterm_ends_server_at_once(self, start: Start) -> None:
        server, asked = start(60)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        assert server.process.poll() is None
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(5.0) == 1
        with pytest.raises(TransientError, match=r"failed: status 500|does not answer"):
            asked.result()

    def test_batch_over_time_limit_ends_server(self, start: Start) -> None:
        server, asked = start(60, "--batch-seconds", "0.5")
        health = httpx.get(f"{server.url}/health").json()
        assert health["state"] == "scoring"
        assert 0 <= health["scoring_seconds"] < 60
        with pytest.raises(TransientError, match=r"gave no answer within 0.5 s \(--batch-seconds\) and still runs"):
            asked.result()
        assert server.process.wait(5.0) == TransientError.exit_code

    def test_failed_scorer_check_sets_exit_code(
        self, params: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def check(self: External) -> None:
            raise DataError("a file is missing")

        monkeypatch.setattr(External, "check", check)
        # Else a failure would serve for ever.
        watch = threading.Timer(10, os.kill, (os.getpid(), signal.SIGTERM))
        watch.start()
        assert call("serve-scorer", [KEY, "--params", str(params), "--port", "0"]) == 3
        assert watch.is_alive()
        watch.cancel()
        assert "error: a file is missing" in capsys.readouterr().err
