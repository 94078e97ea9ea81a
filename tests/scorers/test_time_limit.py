"""Calls of scorers in threads of their own: their time limit, the wait for them, and the end of the process."""

import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

from chunk_grpo.config.scorers import InProcess
from chunk_grpo.errors import Stopped, TransientError
from chunk_grpo.scorers.base import ScoreBatch, Scores
from chunk_grpo.scorers.running.retry import Background, Limited, TimeLimitError, waited
from tests.scorers.servers import ROOT
from tests.shapes_scorers import ScorerForTests

BATCH = ScoreBatch(np.zeros((2, 4, 4, 3), dtype=np.uint8), ["a", "b"], [{}, {}], [0, 1])


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
        with pytest.raises(TimeLimitError, match=r"scorer own: no answer within 0\.2 s \(executors\.own\.timeout"):
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
thread.submit(call, float(sys.argv[1]))
thread.end(seconds=float(sys.argv[2]))
print("the last words", end="")
sys.exit(3)
"""


@pytest.mark.parametrize(("call", "patience", "code"), [(600.0, 0.1, 75), (0.0, 20.0, 3)])
def test_a_process_ends_whatever_a_call_does(call: float, patience: float, code: int) -> None:
    command = [sys.executable, "-c", LEAVING, str(call), str(patience)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, "the last words", "")


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf")])
def test_rejects_invalid_time_limit(seconds: float) -> None:
    with pytest.raises(ValueError, match="timeout_seconds"):
        InProcess(kind="in-process", device=None, timeout_seconds=seconds)
