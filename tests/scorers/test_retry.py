"""A scorer that fails: what is tried again, how long the waits and calls are, and how it ends."""

import errno
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable
from email.message import Message
from http.client import IncompleteRead, RemoteDisconnected
from typing import Any
from urllib.error import HTTPError, URLError

import aiohttp
import httpx
import numpy as np
import openai
import pytest
import requests
from multidict import CIMultiDict, CIMultiDictProxy
from PIL import UnidentifiedImageError
from yarl import URL

from chunk_grpo.config.scorers import InProcess
from chunk_grpo.errors import ConfigError, DataError, Stopped, TransientError
from chunk_grpo.scorers.base import ScoreBatch, Scores
from chunk_grpo.scorers.executors.messages import WorkerError, raise_remote_error
from chunk_grpo.scorers.reward import Reward, weighted_sum
from chunk_grpo.scorers.running.retry import Background, Limited, TimeLimitError, score_with_retries, waited
from chunk_grpo.scorers.workers.worker_protocol.messages import error_message, read_message, write_message
from tests.scorers.servers import ROOT
from tests.shapes_scorers import ScorerForTests

BATCH = ScoreBatch(np.zeros((2, 4, 4, 3), dtype=np.uint8), ["a", "b"], [{}, {}], [0, 1])
VALUES = np.array([0.25, 0.75])


class Flaky(ScorerForTests):
    """Raises the given errors, one a call, and then answers."""

    def __init__(self, errors: Iterable[BaseException] = (), values: np.ndarray = VALUES) -> None:
        self._errors, self._values, self.calls = list(errors), values, 0

    def score(self, batch: ScoreBatch) -> Scores:
        del batch
        self.calls += 1
        if self._errors:
            raise self._errors.pop(0)
        return Scores(self._values)


REQUEST = httpx.Request("POST", "http://judge/v1")


def answered(status: int) -> httpx.Response:
    return httpx.Response(status, request=REQUEST)


def of_httpx(status: int) -> httpx.HTTPStatusError:
    return httpx.HTTPStatusError("told", request=REQUEST, response=answered(status))


def of_requests(status: int) -> requests.HTTPError:
    response = requests.Response()
    response.status_code = status
    return requests.HTTPError("told", response=response)


def of_aiohttp(status: int) -> aiohttp.ClientResponseError:
    about = aiohttp.RequestInfo(
        URL("http://judge"), "POST", CIMultiDictProxy(CIMultiDict()), URL("http://judge")
    )
    return aiohttp.ClientResponseError(about, (), status=status)


PASSING = [
    ConnectionResetError("reset"),
    TimeoutError(),
    OSError(errno.ENETUNREACH, "Network is unreachable"),
    OSError(errno.ESTALE, "Stale file handle"),
    socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"),
    URLError(ConnectionRefusedError("refused")),
    HTTPError("http://judge", 503, "busy", Message(), None),
    IncompleteRead(b"cut"),
    RemoteDisconnected("closed"),
    httpx.ConnectError("refused"),
    httpx.ReadTimeout("slow"),
    httpx.RemoteProtocolError("cut"),
    *(of_httpx(status) for status in (408, 425, 429, 500, 503)),
    openai.APIConnectionError(request=REQUEST),
    openai.APITimeoutError(REQUEST),
    openai.RateLimitError("slower", response=answered(429), body=None),
    openai.InternalServerError("broken", response=answered(500), body=None),
    aiohttp.ServerDisconnectedError(),
    aiohttp.ClientPayloadError("cut"),
    aiohttp.ServerTimeoutError(),
    of_aiohttp(502),
    requests.ConnectionError("refused"),
    requests.Timeout(),
    requests.exceptions.ChunkedEncodingError("cut"),
    of_requests(502),
]
LASTING = [
    FileNotFoundError(errno.ENOENT, "No such file or directory", "weights.pt"),
    PermissionError(errno.EACCES, "Permission denied", "weights.pt"),
    IsADirectoryError(errno.EISDIR, "Is a directory", "weights"),
    OSError("clip does not appear to have a file named config.json"),
    UnidentifiedImageError("cannot identify image file"),
    ValueError("bug"),
    KeyError("bug"),
    HTTPError("http://judge", 404, "no such page", Message(), None),
    of_httpx(404),
    httpx.InvalidURL("no host"),
    httpx.UnsupportedProtocol("no http://"),
    openai.AuthenticationError("no key", response=answered(401), body=None),
    openai.BadRequestError("no", response=answered(400), body=None),
    of_aiohttp(403),
    aiohttp.InvalidURL("judge"),
    of_requests(404),
    requests.exceptions.InvalidURL("judge"),
    requests.exceptions.JSONDecodeError("not JSON", "", 0),
]


def named(error: BaseException) -> str:
    """Name of a case."""
    status = getattr(error, "status", None) or getattr(getattr(error, "response", None), "status_code", "")
    return f"{type(error).__module__.partition('.')[0]}.{type(error).__name__}{status}"


@pytest.mark.parametrize("error", [TransientError("the service is busy"), *PASSING], ids=named)
def test_transient_error_is_retried(error: Exception) -> None:
    waits: list[float] = []
    scorer = Flaky([error])
    assert score_with_retries("flaky", scorer, BATCH, 2, 0.5, waits.append).values.tolist() == [0.25, 0.75]
    assert (scorer.calls, waits) == (2, [0.5])


def test_an_answer_at_once_costs_one_call_and_no_wait() -> None:
    waits: list[float] = []
    scorer = Flaky()
    score_with_retries("flaky", scorer, BATCH, 3, 2.0, waits.append)
    assert (scorer.calls, waits) == (1, [])


def test_each_wait_is_twice_the_one_before_and_none_follows_the_last_attempt() -> None:
    waits: list[float] = []
    scorer = Flaky([ConnectionError("away")] * 9)
    with pytest.raises(TransientError):
        score_with_retries("flaky", scorer, BATCH, 4, 1.5, waits.append)
    assert (scorer.calls, waits) == (4, [1.5, 3.0, 6.0])


def test_final_error_names_scorer_attempts_cause_and_next_step() -> None:
    last = ConnectionError("no route to scorer-host")
    with pytest.raises(TransientError) as caught:
        score_with_retries(
            "flaky",
            Flaky([ConnectionError("first"), TimeoutError("second"), last]),
            BATCH,
            3,
            0,
            lambda _: None,
        )
    assert str(caught.value) == (
        "scorer flaky: no answer after 3 attempts; the last failed with ConnectionError: no route to scorer-host. "
        "No score was made up. Run the same command again when the scorer answers: what is done is kept."
    )
    assert caught.value.exit_code == 75
    assert caught.value.__cause__ is last


def test_every_failed_attempt_but_the_last_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    errors = [TransientError("busy"), TimeoutError(), ConnectionError("away")]
    with caplog.at_level(logging.WARNING), pytest.raises(TransientError):
        score_with_retries("flaky", Flaky(errors), BATCH, 3, 2.0, lambda _: None)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "scorer flaky: attempt 1 of 3 failed (TransientError: busy); the next follows in 2 s"),
        ("WARNING", "scorer flaky: attempt 2 of 3 failed (TimeoutError); the next follows in 4 s"),
    ]


@pytest.mark.parametrize(
    "error",
    [DataError("no such prompt"), ConfigError("no such key"), *LASTING, KeyboardInterrupt()],
    ids=named,
)
def test_permanent_error_is_not_retried(error: BaseException) -> None:
    waits: list[float] = []
    scorer = Flaky([error] * 3)
    with pytest.raises(type(error)) as caught:
        score_with_retries("flaky", scorer, BATCH, 3, 2.0, waits.append)
    assert caught.value is error
    assert (scorer.calls, waits) == (1, [])


@pytest.mark.parametrize("error", [*PASSING, *LASTING], ids=named)
def test_remote_errors_are_classified_like_local_ones(error: Exception) -> None:
    """Error after its transport as JSON from a worker or server."""
    told = read_message(write_message(error_message(error)))
    with pytest.raises(TransientError if error in PASSING else WorkerError, match=type(error).__name__):
        raise_remote_error(told, "scorer odd: its worker process")


def test_a_scorer_that_took_too_long_is_not_asked_again_while_it_runs() -> None:
    scorer = Flaky([TimeLimitError("still runs")])
    with pytest.raises(TimeLimitError):
        score_with_retries("flaky", scorer, BATCH, 3, 0)
    assert scorer.calls == 1


@pytest.mark.parametrize("attempts", [0, -1])
def test_there_is_at_least_one_attempt(attempts: int) -> None:
    with pytest.raises(ValueError, match=f"attempts: must be at least 1, got {attempts}"):
        score_with_retries("flaky", Flaky(), BATCH, attempts, 2.0)


@pytest.mark.parametrize("seconds", [-1.0, np.nan, np.inf])
def test_rejects_invalid_wait(seconds: float) -> None:
    with pytest.raises(ValueError, match="wait_seconds: must be finite and at least 0"):
        score_with_retries("flaky", Flaky(), BATCH, 1, seconds)


def test_the_reward_asks_again_and_then_stops() -> None:
    scorer = Flaky([ConnectionError("away")] * 3)
    reward = Reward({"flaky": scorer}, {"flaky": 2.0}, attempts=2, wait_seconds=0)
    with pytest.raises(TransientError, match="scorer flaky: no answer after 2 attempts"):
        reward.scores(BATCH)
    assert scorer.calls == 2
    assert weighted_sum(reward.scores(BATCH), reward.weights).tolist() == [0.5, 1.5]
    assert scorer.calls == 4


def test_a_reward_that_is_not_a_number_is_not_asked_for_again() -> None:
    scorer = Flaky(values=np.array([0.25, np.nan]))
    with pytest.raises(DataError, match=r"scorer flaky: image 1 of the batch \(.*\) got nan"):
        Reward({"flaky": scorer}, {"flaky": 1.0}).scores(BATCH)
    assert scorer.calls == 1


def test_a_scorer_that_compares_a_group_is_no_training_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Flaky, "groupwise", True)
    with pytest.raises(ConfigError, match=r"^rewards.flaky: this scorer compares the images of a prompt"):
        Reward({"flaky": Flaky()}, {"flaky": 1.0})


def test_mix_adds_in_the_order_of_the_weights_from_zero() -> None:
    """In binary, (0.1 + 0.2) + 0.3 is not 0.1 + (0.2 + 0.3): the order of the weights changes the last bit."""
    details = {"c": np.array([0.3]), "b": np.array([0.2]), "a": np.array([0.1]), "unused": np.array([9.0])}
    assert weighted_sum(details, {"a": 1.0, "b": 1.0, "c": 1.0}).tolist() == [0.6000000000000001]
    assert weighted_sum(details, {"c": 1.0, "b": 1.0, "a": 1.0}).tolist() == [0.6]
    assert weighted_sum({"a": VALUES, "b": np.array([4.0, 8.0])}, {"b": 0.5, "a": 2.0}).tolist() == [2.5, 5.5]
    assert details["a"].tolist() == [0.1]


def test_mix_names_a_scorer_that_is_missing() -> None:
    with pytest.raises(DataError, match=r"^reward: no values of scorer 'b'; there are a, c$"):
        weighted_sum({"a": VALUES, "c": VALUES}, {"a": 1.0, "b": 1.0})
    with pytest.raises(DataError, match=r"there are none$"):
        weighted_sum({}, {"b": 1.0})


def test_mix_does_not_spread_one_value_over_all_images() -> None:
    with pytest.raises(DataError, match=r"scorer 'b' has values \(1,\), needs \(2,\)"):
        weighted_sum({"a": VALUES, "b": np.array([1.0])}, {"a": 1.0, "b": 1.0})


def test_mix_needs_a_weight() -> None:
    with pytest.raises(ValueError, match="weights: at least one scorer is needed"):
        weighted_sum({"a": VALUES}, {})


class Waiting(ScorerForTests):
    """Answers when it may."""

    def __init__(self) -> None:
        self.may_answer, self.threads, self.closed = threading.Event(), set[str](), False

    def score(self, batch: ScoreBatch) -> Scores:
        self.threads.add(threading.current_thread().name)
        assert self.may_answer.wait(60)
        return Scores(np.arange(float(len(batch))))

    def close(self) -> None:
        self.closed = True


def test_within_the_limit_it_is_the_scorer_in_one_thread() -> None:
    scorer = Waiting()
    scorer.may_answer.set()
    limited = Limited("own", scorer, 60.0)
    assert [limited.score(BATCH).values.tolist() for _ in range(2)] == [[0.0, 1.0]] * 2
    assert scorer.threads == {"scorer own"}
    limited.close()
    assert scorer.closed


def test_after_the_limit_it_is_neither_asked_again_nor_closed() -> None:
    scorer = Waiting()
    limited = Limited("own", scorer, 0.2)
    for _ in range(2):
        with pytest.raises(
            TimeLimitError, match=r"scorer own: no answer within 0\.2 s \(executors\.own\.timeout"
        ):
            limited.score(BATCH)
    limited.close()
    assert not scorer.closed
    assert len(scorer.threads) == 1
    scorer.may_answer.set()


def test_a_stop_just_after_the_call_began_leaves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def submit(thread: Background, *call: Any) -> None:
        submit_call(thread, *call)
        raise Stopped("stopped by SIGTERM")

    submit_call = Background.submit
    monkeypatch.setattr(Background, "submit", submit)
    scorer = Waiting()
    limited = Limited("own", scorer, 60.0)
    with pytest.raises(Stopped):
        limited.score(BATCH)
    closing = threading.Thread(target=limited.close, daemon=True)
    closing.start()
    closing.join(20)
    assert not closing.is_alive()
    assert not scorer.closed
    scorer.may_answer.set()


def test_waiting_raises_the_error_of_the_call() -> None:
    thread = Background("calls")
    with pytest.raises(KeyError, match="nothing"):
        waited(thread.submit({}.__getitem__, "nothing"), lambda: None)
    assert waited(thread.submit(int, "7"), lambda: None) == 7
    thread.end()


def test_waiting_can_be_interrupted() -> None:
    thread, may_end = Background("calls"), threading.Event()
    answer = thread.submit(may_end.wait, 60)

    def stop() -> None:
        raise TransientError("stopped")

    with pytest.raises(TransientError, match="stopped"):
        waited(answer, stop)
    may_end.set()
    thread.end()


LEAVING = """
import sys, time
from concurrent.futures import ThreadPoolExecutor
from chunk_grpo.scorers.running.retry import Background

def call(seconds):
    # in a thread that Python waits for at its end, as many clients have one
    with ThreadPoolExecutor(1) as pool:
        pool.submit(time.sleep, seconds).result()

thread = Background("calls")
thread.submit({"plain": time.sleep, "threads": call}[sys.argv[3]], float(sys.argv[1]))
thread.end(seconds=float(sys.argv[2]))
print("the last words", end="")
sys.exit(3)
"""


@pytest.mark.parametrize("kind", ["plain", "threads"])
@pytest.mark.parametrize(("call", "patience", "code"), [(600.0, 0.1, 75), (0.0, 20.0, 3)])
def test_a_process_ends_whatever_a_call_does(call: float, patience: float, code: int, kind: str) -> None:
    command = [sys.executable, "-c", LEAVING, str(call), str(patience), kind]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, "the last words", "")


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf")])
def test_rejects_invalid_time_limit(seconds: float) -> None:
    with pytest.raises(ValueError, match="timeout_seconds"):
        InProcess(kind="in-process", device=None, timeout_seconds=seconds)
