"""Further attempts at a stage that ended with exit code 75."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from chunk_grpo.errors import ConfigError
from chunk_grpo.orchestration import attempts
from chunk_grpo.orchestration.attempts import attempted, attempts_allowed, pause_after
from chunk_grpo.orchestration.outcomes import StageFailed


class Stage:
    """A stage that ends with these exit codes, and then succeeds."""

    def __init__(self, *codes: int) -> None:
        self.codes, self.runs = list(codes), 0

    def __call__(self) -> str:
        self.runs += 1
        if self.codes:
            raise StageFailed("score@a", self.codes.pop(0), [])
        return "done"


class Waits(threading.Event):
    """An event that notes how long was waited for it."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.pauses.append(timeout)
        return self.is_set()


def test_a_stage_is_tried_again_after_growing_pauses() -> None:
    stage, waits = Stage(75, 75), Waits()
    log: list[str] = []
    assert attempted(stage, 3, waits, log.append) == "done"
    assert (stage.runs, waits.pauses) == (3, [15.0, 60.0])
    assert [text.splitlines()[-1] for text in log] == [
        "Attempt 2 of 3 at score@a follows in 15 s.",
        "Attempt 3 of 3 at score@a follows in 60 s.",
    ]


@pytest.mark.parametrize(
    ("codes", "allowed", "runs"), [((75, 75, 75, 75), 3, 3), ((75, 3), 3, 2), ((3,), 3, 1), ((75,), 1, 1)]
)
def test_the_last_failure_is_raised(codes: tuple[int, ...], allowed: int, runs: int) -> None:
    stage = Stage(*codes)
    with pytest.raises(StageFailed) as caught:
        attempted(stage, allowed, Waits(), lambda _: None)
    assert (stage.runs, caught.value.exit_code) == (runs, codes[runs - 1])


def test_a_run_that_stops_makes_no_further_attempt() -> None:
    stage, waits = Stage(75), Waits()
    waits.set()
    with pytest.raises(StageFailed):
        attempted(stage, 3, waits, lambda _: None)
    assert stage.runs == 1


def test_retry_pause_enters_given_context() -> None:
    stage, seen = Stage(75), list[str]()

    @contextmanager
    def paused() -> Iterator[None]:
        seen.append(f"paused after {stage.runs}")
        yield
        seen.append(f"over before {stage.runs + 1}")

    assert attempted(stage, 2, Waits(), lambda _: None, paused) == "done"
    assert seen == ["paused after 1", "over before 2"]


def test_retry_pauses_grow_to_a_maximum() -> None:
    assert [pause_after(number) for number in range(1, 6)] == [15, 60, 240, 600, 600]


def test_the_environment_sets_the_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(attempts.STAGE_ATTEMPTS, raising=False)
    assert (attempts_allowed(), attempts_allowed(2)) == (3, 2)
    monkeypatch.setenv(attempts.STAGE_ATTEMPTS, "5")
    assert (attempts_allowed(), attempts_allowed(2)) == (5, 5)
    for wrong in ("0", "-1", "many"):
        monkeypatch.setenv(attempts.STAGE_ATTEMPTS, wrong)
        with pytest.raises(ConfigError, match=r"^CHUNK_GRPO_STAGE_ATTEMPTS: must be a whole number"):
            attempts_allowed()
