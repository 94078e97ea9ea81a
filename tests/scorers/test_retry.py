"""A scorer that fails: what is tried again, how long the waits are, and how it ends."""

import errno
import logging
import socket
from collections.abc import Iterable
from urllib.error import URLError

import numpy as np
import pytest
from PIL import UnidentifiedImageError

from chunk_grpo.errors import ConfigError, DataError, TransientError
from chunk_grpo.scorers.base import ScoreBatch, Scores
from chunk_grpo.scorers.retry import score_with_retries
from chunk_grpo.scorers.reward import Reward, mix
from chunk_grpo.scorers.workers import lines
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


class RequestException(OSError):  # noqa: N818
    """As requests has it: an OSError without a number, of no class of Python's own."""


PASSING = [
    ConnectionResetError("reset"),
    TimeoutError(),
    OSError(errno.ENETUNREACH, "Network is unreachable"),
    OSError(errno.ESTALE, "Stale file handle"),
    socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"),
    URLError(ConnectionRefusedError("refused")),
    RequestException("502 Bad Gateway"),
]
LASTING = [
    FileNotFoundError(errno.ENOENT, "No such file or directory", "weights.pt"),
    PermissionError(errno.EACCES, "Permission denied", "weights.pt"),
    IsADirectoryError(errno.EISDIR, "Is a directory", "weights"),
    OSError("clip does not appear to have a file named config.json"),
    UnidentifiedImageError("cannot identify image file"),
    ValueError("bug"),
    KeyError("bug"),
]


@pytest.mark.parametrize(
    "error", [TransientError("the service is busy"), *PASSING], ids=lambda error: type(error).__name__
)
def test_what_may_pass_is_tried_again(error: Exception) -> None:
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


def test_the_end_says_who_how_often_why_and_what_next() -> None:
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
        "No reward was made up. Run the same command again when the scorer answers: training goes on from its last "
        "checkpoint."
    )
    assert caught.value.exit_code == 75
    assert caught.value.__cause__ is last


def test_every_failed_attempt_but_the_last_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    errors = [TransientError("busy"), TimeoutError(), ConnectionError("away")]
    with caplog.at_level(logging.WARNING), pytest.raises(TransientError):
        score_with_retries("flaky", Flaky(errors), BATCH, 3, 2.0, lambda _: None)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        (
            "WARNING",
            "scorer flaky: attempt 1 of 3 failed (TransientError: busy); the next follows in 2 s",
        ),
        ("WARNING", "scorer flaky: attempt 2 of 3 failed (TimeoutError); the next follows in 4 s"),
    ]


@pytest.mark.parametrize(
    "error",
    [DataError("no such prompt"), ConfigError("no such key"), *LASTING, KeyboardInterrupt()],
    ids=lambda error: type(error).__name__,
)
def test_what_another_try_cannot_mend_is_raised_at_once(error: BaseException) -> None:
    waits: list[float] = []
    scorer = Flaky([error] * 3)
    with pytest.raises(type(error)) as caught:
        score_with_retries("flaky", scorer, BATCH, 3, 2.0, waits.append)
    assert caught.value is error
    assert (scorer.calls, waits) == (1, [])


@pytest.mark.parametrize("error", [*PASSING, *LASTING], ids=lambda error: type(error).__name__)
def test_a_worker_in_another_process_judges_alike(error: Exception) -> None:
    expected = "TransientError" if error in PASSING else type(error).__name__
    assert lines.error_message(error)["kind"] == expected


@pytest.mark.parametrize("attempts", [0, -1])
def test_there_is_at_least_one_attempt(attempts: int) -> None:
    with pytest.raises(ValueError, match=f"attempts: must be at least 1, got {attempts}"):
        score_with_retries("flaky", Flaky(), BATCH, attempts, 2.0)


@pytest.mark.parametrize("seconds", [-1.0, np.nan, np.inf])
def test_a_wait_is_a_number_of_seconds(seconds: float) -> None:
    with pytest.raises(ValueError, match="wait_seconds: must be finite and at least 0"):
        score_with_retries("flaky", Flaky(), BATCH, 1, seconds)


def test_the_reward_asks_again_and_then_stops() -> None:
    scorer = Flaky([ConnectionError("away")] * 3)
    reward = Reward({"flaky": scorer}, {"flaky": 2.0}, attempts=2, wait_seconds=0)
    with pytest.raises(TransientError, match="scorer flaky: no answer after 2 attempts"):
        reward.score(BATCH)
    assert scorer.calls == 2
    assert reward.score(BATCH).values.tolist() == [0.5, 1.5]
    assert scorer.calls == 4


def test_a_reward_that_is_not_a_number_is_not_asked_for_again() -> None:
    scorer = Flaky(values=np.array([0.25, np.nan]))
    with pytest.raises(DataError, match=r"scorer flaky: image 1 of the batch \(.*\) got nan"):
        Reward({"flaky": scorer}, {"flaky": 1.0}).score(BATCH)
    assert scorer.calls == 1


def test_a_scorer_that_compares_a_group_is_no_training_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Flaky, "groupwise", True)
    with pytest.raises(ConfigError, match=r"^rewards.flaky: this scorer compares the images of a prompt"):
        Reward({"flaky": Flaky()}, {"flaky": 1.0})


def test_mix_adds_in_the_order_of_the_weights_from_zero() -> None:
    """In binary, (0.1 + 0.2) + 0.3 is not 0.1 + (0.2 + 0.3): the order of the weights is seen in the last bit."""
    details = {"c": np.array([0.3]), "b": np.array([0.2]), "a": np.array([0.1]), "unused": np.array([9.0])}
    assert mix(details, {"a": 1.0, "b": 1.0, "c": 1.0}).tolist() == [0.6000000000000001]
    assert mix(details, {"c": 1.0, "b": 1.0, "a": 1.0}).tolist() == [0.6]
    assert mix({"a": VALUES, "b": np.array([4.0, 8.0])}, {"b": 0.5, "a": 2.0}).tolist() == [2.5, 5.5]
    assert details["a"].tolist() == [0.1]


def test_mix_names_a_scorer_that_is_missing() -> None:
    with pytest.raises(DataError, match=r"^reward: no values of scorer 'b'; there are a, c$"):
        mix({"a": VALUES, "c": VALUES}, {"a": 1.0, "b": 1.0})
    with pytest.raises(DataError, match=r"there are none$"):
        mix({}, {"b": 1.0})


def test_mix_does_not_spread_one_value_over_all_images() -> None:
    with pytest.raises(DataError, match=r"scorer 'b' has values \(1,\), needs \(2,\)"):
        mix({"a": VALUES, "b": np.array([1.0])}, {"a": 1.0, "b": 1.0})


def test_mix_needs_a_weight() -> None:
    with pytest.raises(ValueError, match="weights: at least one scorer is needed"):
        mix({"a": VALUES}, {})
