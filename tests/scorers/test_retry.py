"""A scorer that fails: what is tried again, how long the waits are, and how it ends."""

import errno
import logging
import socket
from collections.abc import Iterable
from email.message import Message
from http.client import IncompleteRead, RemoteDisconnected
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

from chunk_grpo.errors import DataError, TransientError
from chunk_grpo.scorers.base import ScoreBatch, Scorer, Scores
from chunk_grpo.scorers.executors.messages import WorkerError, raise_remote_error
from chunk_grpo.scorers.reward import Reward
from chunk_grpo.scorers.running import retry
from chunk_grpo.scorers.running.retry import TimeLimitError, score_with_retries
from chunk_grpo.scorers.workers.worker_protocol.messages import error_message, read_message, write_message
from tests.scorers.fake_clock import FakeClock
from tests.shapes_scorers import ScorerForTests

BATCH = ScoreBatch(np.zeros((2, 4, 4, 3), dtype=np.uint8), ["a", "b"], [{}, {}], [0, 1])


class Flaky(ScorerForTests):
    """Raises the given errors, one a call, and then answers."""

    def __init__(self, errors: Iterable[BaseException]) -> None:
        self._errors, self.calls = list(errors), 0

    def score(self, batch: ScoreBatch) -> Scores:
        del batch
        self.calls += 1
        if self._errors:
            raise self._errors.pop(0)
        return Scores(np.array([0.25, 0.75]))


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
    about = aiohttp.RequestInfo(URL("http://judge"), "POST", CIMultiDictProxy(CIMultiDict()), URL("http://judge"))
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


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """Waits that take no time."""
    made = FakeClock()
    monkeypatch.setattr(retry, "time", made)
    return made


def scored(scorer: Scorer, seconds: float = 6.0) -> Scores:
    return score_with_retries("flaky", scorer, BATCH, seconds)


@pytest.mark.parametrize("errors", [[], [TransientError("the service is busy")], [ConnectionResetError("reset")]])
def test_only_a_transient_error_costs_a_wait_and_another_call(errors: list[Exception], clock: FakeClock) -> None:
    scorer = Flaky(errors)
    assert scored(scorer).values.tolist() == [0.25, 0.75]
    assert (scorer.calls, clock.waits) == (1 + len(errors), [2.0] * len(errors))


@pytest.mark.parametrize(
    ("seconds", "waits"),
    [
        (0.0, []),
        (1.5, [1.5]),
        (6.0, [2.0, 4.0]),
        (7.0, [2.0, 4.0, 1.0]),
        (100.0, [2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 10.0]),
    ],
)
def test_waits_double_up_to_half_a_minute_and_the_last_attempt_is_at_the_limit(
    seconds: float, waits: list[float], clock: FakeClock
) -> None:
    scorer = Flaky([ConnectionError("away")] * 99)
    with pytest.raises(TransientError):
        scored(scorer, seconds)
    assert (scorer.calls, clock.waits) == (len(waits) + 1, waits)


def test_calls_that_take_long_count_as_time_away(clock: FakeClock) -> None:
    """Each call takes 50 s, and the first one is not counted: it fails at 0, the second at 52, the third at 106 s."""

    class Slow(Flaky):
        def score(self, batch: ScoreBatch) -> Scores:
            clock.sleep(50)
            return super().score(batch)

    with pytest.raises(TransientError, match="no answer for 1 min 46 s, after 3 attempts"):
        scored(Slow([TimeoutError()] * 9), 100.0)


def test_final_error_names_scorer_time_cause_and_next_step() -> None:
    last = ConnectionError("no route to scorer-host")
    with pytest.raises(TransientError) as caught:
        scored(Flaky([ConnectionError("first"), TimeoutError("second"), last]))
    assert str(caught.value) == (
        "scorer flaky: no answer for 6.0 s, after 3 attempts; the last failed with ConnectionError: no route to "
        "scorer-host. No score was made up. Run the same command again when the scorer answers: what is done is kept."
    )
    assert caught.value.exit_code == 75
    assert caught.value.__cause__ is last


def test_there_is_a_warning_at_the_first_failure_and_about_every_minute(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), pytest.raises(TransientError):
        scored(Flaky([TimeoutError(), *[ConnectionError("away")] * 99]), 200.0)
    assert caplog.messages == [
        "scorer flaky: no answer for 0.0 s (TimeoutError); asked again for 3 min 20 s more",
        "scorer flaky: no answer for 1 min 00 s (ConnectionError: away); asked again for 2 min 20 s more",
        "scorer flaky: no answer for 2 min 00 s (ConnectionError: away); asked again for 1 min 20 s more",
        "scorer flaky: no answer for 3 min 00 s (ConnectionError: away); asked again for 20.0 s more",
    ]


@pytest.mark.parametrize(
    "error", [DataError("no such prompt"), TimeLimitError("still runs"), LASTING[0], KeyboardInterrupt()], ids=named
)
def test_permanent_error_is_not_retried(error: BaseException, clock: FakeClock) -> None:
    scorer = Flaky([error] * 3)
    with pytest.raises(type(error)) as caught:
        scored(scorer)
    assert caught.value is error
    assert (scorer.calls, clock.waits) == (1, [])


@pytest.mark.parametrize("error", [*PASSING, *LASTING], ids=named)
def test_errors_that_may_pass_are_transient_in_another_process_too(error: Exception) -> None:
    """After their transport as JSON from a worker or server; here the same rule decides."""
    told = read_message(write_message(error_message(error)))
    with pytest.raises(TransientError if error in PASSING else WorkerError, match=type(error).__name__):
        raise_remote_error(told, "scorer odd: its worker process")


def test_the_reward_asks_again_for_its_time_and_then_stops() -> None:
    scorer = Flaky([ConnectionError("away")] * 3)
    reward = Reward({"flaky": scorer}, {"flaky": 2.0}, away_seconds=1.5)
    with pytest.raises(TransientError, match=r"scorer flaky: no answer for 1\.5 s, after 2 attempts"):
        reward.scores(BATCH)
    assert reward.scores(BATCH)["flaky"].tolist() == [0.25, 0.75]  # it may be away again for as long
    assert scorer.calls == 4
