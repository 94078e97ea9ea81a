"""The scoring server: who may ask, how much, in which order, and how it ends."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import numpy as np
import pytest

from chunk_grpo.errors import ConfigError, DataError, TransientError
from chunk_grpo.scorers import serve
from chunk_grpo.scorers.base import ScoreBatch, Scores
from chunk_grpo.scorers.executors.http_app import Limits
from chunk_grpo.scorers.executors.messages import encode_batch
from chunk_grpo.scorers.running.external import External
from chunk_grpo.scorers.running.fingerprint import scoring_settings
from tests.scorers.odd_scorers import KEY, batch, settings
from tests.scorers.servers import ServerProcess, client, server_in_thread, write_params

TOKEN = "an-open-secret-4711"
VARIABLE = "SCORING_TOKEN"


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


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def ask_in_order(pool: ThreadPoolExecutor, url: str, batches: Sequence[ScoreBatch]) -> list[Future[Scores]]:
    """Each waits at the server before the next comes; the first is being scored."""
    asked: list[Future[Scores]] = []
    for each in batches:
        asked.append(pool.submit(client(url).score, each))
        wait_for(lambda: httpx.get(f"{url}/health").json().get("queue") == len(asked))
        time.sleep(0.05)
    return asked


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.fixture
def start(params: Path) -> Iterator[Callable[..., ServerProcess]]:
    """Starts servers as processes, which end with the test."""
    with ExitStack() as stack:
        yield lambda *options, **variables: stack.enter_context(
            ServerProcess(params, KEY, *options, **variables)
        )


@pytest.fixture(scope="module")
def params(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_params(tmp_path_factory.mktemp("server") / "params.yaml", KEY, settings())


class TestHealth:
    def test_health_reports_identity_and_queue(self) -> None:
        scorer = External(KEY, settings())
        with server_in_thread(scorer, Limits(held_bytes=10**7, most_bytes=10**6, token=None)) as url:
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
            "protocol": 2,
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
        with server_in_thread(scorer, Limits(held_bytes=held, most_bytes=10**6, token=None)) as url:
            first = pool.submit(client(url).score, batch(count=1))
            assert scorer.begun.acquire(timeout=5)
            second = pool.submit(client(url).score, batch(count=2))
            wait_for(lambda: httpx.get(f"{url}/health").json()["queue"] == 2)
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

    def test_batches_that_wait_are_scored_together_if_asked_for(self, pool: ThreadPoolExecutor) -> None:
        scorer = Gated()
        with server_in_thread(scorer, merge=7) as url:
            counts = (1, 2, 4, 3)
            asked = ask_in_order(pool, url, [batch(count=count) for count in counts])
            scorer.may_end.release(4)
            for count, scores in zip(counts, asked, strict=True):
                assert scores.result().values.tolist() == expected(batch(count=count))
        assert [len(call) for call in scorer.calls] == [1, 6, 3]
        # 2 + 4 images; those of one prompt share a group, those of different clients never do
        assert list(scorer.calls[1].groups) == [0, 0, 1, 1, 2, 2]

    def test_images_of_different_sizes_are_not_scored_together(self, pool: ThreadPoolExecutor) -> None:
        scorer = Gated()
        with server_in_thread(scorer, merge=64) as url:
            asked = ask_in_order(pool, url, [batch(size=size) for size in (4, 4, 4, 8)])
            scorer.may_end.release(3)
            for scores in asked:
                scores.result()
        assert [call.images.shape for call in scorer.calls] == [(4, 4, 4, 3), (8, 4, 4, 3), (4, 8, 8, 3)]

    def test_one_bad_batch_among_others_fails_alone(self, pool: ThreadPoolExecutor) -> None:
        scorer = Gated()
        with server_in_thread(scorer, merge=64) as url:
            asked = ask_in_order(pool, url, [batch(do) for do in ("", "data", "refuse")])
            scorer.may_end.release(4)
            assert asked[0].result().values.tolist() == expected(batch())
            with pytest.raises(DataError, match=r"^the reason \(data\)$"):
                asked[1].result()
            assert dict(asked[2].result().refused) == {1: "the reason (1)"}
        assert [len(call) for call in scorer.calls] == [4, 8, 4, 4]

    def test_batches_that_are_merged_keep_their_own_refusals(self, pool: ThreadPoolExecutor) -> None:
        scorer = Gated()
        with server_in_thread(scorer, merge=64) as url:
            asked = ask_in_order(pool, url, [batch(), batch("refuse", count=3), batch(count=2)])
            scorer.may_end.release(2)
            assert [dict(scores.result().refused) for scores in asked] == [{}, {1: "the reason (1)"}, {}]
        assert [len(call) for call in scorer.calls] == [4, 5]

    def test_a_batch_whose_client_has_left_is_not_scored(self, pool: ThreadPoolExecutor) -> None:
        scorer = Gated()
        with server_in_thread(scorer) as url:
            first = pool.submit(client(url).score, batch(count=1))
            assert scorer.begun.acquire(timeout=5)
            with pytest.raises(TransientError, match=r"did not answer within 0\.3 s"):
                client(url, timeout_seconds=0.3).score(batch(count=2))
            wait_for(lambda: httpx.get(f"{url}/health").json()["queue"] == 1)
            scorer.may_end.release(2)
            first.result()
            client(url).score(batch(count=3))
        assert [len(call) for call in scorer.calls] == [1, 3]


class TestToken:
    def test_requires_token(
        self, start: Callable[..., ServerProcess], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server = start("--token-variable", VARIABLE, **{VARIABLE: TOKEN})
        line = encode_batch(batch(), "a question")
        for header in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}):
            assert httpx.get(f"{server.url}/health", headers=header).status_code == 401
            assert httpx.post(f"{server.url}/score", headers=header, content=line).status_code == 401
        with pytest.raises(
            ConfigError, match=r"asks for a token: name its environment variable in executors\.odd\.tok"
        ):
            client(server.url).check()
        messages = []
        for value, words in (
            ("wrong-" + TOKEN, f"refuses the token in {VARIABLE} (executors.odd.token_variable)"),
            ("", f"executors.odd.token_variable: the environment variable {VARIABLE} is not set or empty"),
            (TOKEN + "\n", f"executors.odd.token_variable: the token in {VARIABLE} must consist of visible"),
        ):
            monkeypatch.setenv(VARIABLE, value)
            with pytest.raises(ConfigError) as caught:
                client(server.url, token_variable=VARIABLE).check()
            assert words in str(caught.value)
            messages.append(str(caught.value))
        monkeypatch.setenv(VARIABLE, TOKEN)
        scorer = client(server.url, token_variable=VARIABLE)
        assert scorer.score(batch()).values.tolist() == expected(batch())
        code, log = server.end()
        with pytest.raises(TransientError) as gone:
            scorer.score(batch())
        assert f"--token-variable {VARIABLE}`" in str(gone.value)
        assert code == 0
        assert "4 images in" in log
        assert TOKEN not in "".join([log, *messages, str(gone.value), repr(scorer)])

    @pytest.mark.parametrize(
        ("command", "message"),
        [
            ((KEY, "--host", "0.0.0.0"), "--host: without a token a server listens on this machine only"),
            ((KEY, "--host", "::"), "--host: without a token"),
            (
                (KEY, "--held-megabytes", "100"),
                "--held-megabytes: must be at least --most-megabytes (512), got",
            ),
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
        assert serve.main([*command, "--params", str(params)]) == 2
        assert capsys.readouterr().err.startswith("error: " + message.format(params=params))


class TestEnd:
    def test_sigterm_lets_the_running_batch_end_and_refuses_those_that_wait(
        self, start: Callable[..., ServerProcess], pool: ThreadPoolExecutor, tmp_path: Path
    ) -> None:
        server = start()
        slow = batch("slow", seconds=1.5, begun=str(tmp_path / "begun"))
        running = pool.submit(client(server.url).score, slow)
        wait_for((tmp_path / "begun").exists)
        waiting = pool.submit(client(server.url).score, batch())
        wait_for(lambda: httpx.get(f"{server.url}/health").json()["queue"] == 2)
        server.process.send_signal(signal.SIGTERM)
        assert running.result().values.tolist() == expected(batch())
        with pytest.raises(
            TransientError, match="the scoring server is shutting down; it did not score this batch"
        ):
            waiting.result()
        assert server.process.wait(5.0) == 0

    def test_second_sigterm_ends_server_at_once(
        self, start: Callable[..., ServerProcess], pool: ThreadPoolExecutor, tmp_path: Path
    ) -> None:
        server = start()
        slow = batch("slow", seconds=60, begun=str(tmp_path / "begun"))
        asked = pool.submit(client(server.url).score, slow)
        wait_for((tmp_path / "begun").exists)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        assert server.process.poll() is None
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(5.0) == 1
        with pytest.raises(TransientError, match=r"failed: status 500|does not answer"):
            asked.result()

    def test_batch_over_time_limit_ends_server(
        self, start: Callable[..., ServerProcess], pool: ThreadPoolExecutor, tmp_path: Path
    ) -> None:
        server = start("--batch-seconds", "0.5")
        asked = pool.submit(
            client(server.url).score, batch("slow", seconds=60, begun=str(tmp_path / "begun"))
        )
        wait_for((tmp_path / "begun").exists)
        health = httpx.get(f"{server.url}/health").json()
        assert health["state"] == "scoring"
        assert 0 <= health["scoring_seconds"] < 60
        with pytest.raises(
            TransientError, match=r"gave no answer within 0.5 s \(--batch-seconds\) and still runs"
        ):
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
        assert serve.main([KEY, "--params", str(params), "--port", "0"]) == 3
        assert watch.is_alive()
        watch.cancel()
        assert "error: a file is missing" in capsys.readouterr().err
