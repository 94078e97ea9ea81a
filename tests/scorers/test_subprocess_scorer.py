"""Scorers in a process of their own: what a crash, a hang, a foreign script or a strange answer leads to."""

import logging
import os
import re
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from chunk_grpo.errors import ConfigError, DataError, TransientError
from chunk_grpo.scorers.executors.subprocess_scorer import SubprocessScorer
from chunk_grpo.scorers.running.external import External
from tests.scorers.odd_scorers import KEY, batch, settings
from tests.scorers.servers import ROOT, in_subprocess


@pytest.fixture(scope="module")
def shared() -> Iterator[SubprocessScorer]:
    """One worker, which is started anew when a test has ended it."""
    others = psutil.Process().children(recursive=True)  # such as a server of the whole session
    scorer = SubprocessScorer(KEY, settings(), in_subprocess())
    yield scorer
    scorer.close()
    assert [each for each in psutil.Process().children(recursive=True) if each not in others] == []


def gone(pid: int, seconds: float = 5.0) -> bool:
    """Whether a process ends in time; a zombie counts as ended."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.02)
    return False


def test_a_crash_restarts_it_once_and_asks_again(
    shared: SubprocessScorer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shared.check()
    before = shared.pid
    with caplog.at_level(logging.WARNING):
        values = shared.score(batch("exit once", marker=str(tmp_path / "marker"))).values
    assert np.array_equal(values, External(KEY, settings()).score(batch()).values)
    assert shared.pid not in (before, None)
    assert before is not None and gone(before)
    assert "ended with exit code 7" in caplog.text


def test_second_crash_reports_exit_code_and_stderr(shared: SubprocessScorer) -> None:
    with pytest.raises(TransientError) as caught:
        shared.score(batch("exit"))
    assert "ended with exit code 7. Last lines of its stderr:\none line\nsomething is broken\n" in str(
        caught.value
    )
    assert str(caught.value).endswith("This was the second attempt.")
    assert shared.score(batch()).values.shape == (4,)


def test_a_hanging_one_is_killed_with_its_children(tmp_path: Path) -> None:
    scorer = SubprocessScorer(KEY, settings(), in_subprocess(start_seconds=4.0, timeout_seconds=0.5))
    scorer.score(batch())
    start = time.monotonic()
    with pytest.raises(TransientError, match=r"gave no answer within .* s and was killed"):
        scorer.score(batch("hang", pids=str(tmp_path / "pids")))
    assert 0.5 < time.monotonic() - start < 30
    assert scorer.pid is None
    assert all(gone(int(pid)) for pid in (tmp_path / "pids").read_text().split())
    scorer.close()


def test_a_crash_ends_its_children(shared: SubprocessScorer, tmp_path: Path) -> None:
    with pytest.raises(TransientError, match="exit code 7"):
        shared.score(batch("child", pids=str(tmp_path / "pids")))
    assert all(gone(int(pid)) for pid in (tmp_path / "pids").read_text().split())


def test_child_outside_process_group_does_not_block(shared: SubprocessScorer, tmp_path: Path) -> None:
    start = time.monotonic()
    with pytest.raises(TransientError, match="exit code 7"):
        shared.score(batch("child", pids=str(tmp_path / "pids"), apart=True))
    assert time.monotonic() - start < 60
    for left in (tmp_path / "pids").read_text().split()[1::2]:
        psutil.Process(int(left)).kill()


def test_worker_defaults_to_gpu_of_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "worker.py").write_text(
        "import json, sys\n"
        "device = json.loads(sys.stdin.readline())['device']\n"
        "print(json.dumps(dict(type='error', kind='DataError', message=str(device), traceback='')))\n"
    )
    script = str(tmp_path / "worker.py")

    def told(device: str | None) -> str:
        with pytest.raises(DataError) as caught:
            SubprocessScorer(KEY, settings(), in_subprocess(script=script, device=device)).check()
        return str(caught.value)

    assert told(None) == "None"
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    monkeypatch.setattr("torch.cuda.current_device", lambda: 3)
    assert (told(None), told("cuda:1")) == ("cuda:3", "cuda:1")


def test_close_closes_the_scorer_there_and_ends_the_process(tmp_path: Path) -> None:
    marker = tmp_path / "closed"
    scorer = SubprocessScorer(KEY, settings("Closing", marker=str(marker)), in_subprocess())
    scorer.score(batch())
    pid = scorer.pid
    scorer.close()
    assert marker.exists()
    assert pid is not None and not psutil.pid_exists(pid)
    scorer.close()  # a second time, there is nothing to close


@pytest.mark.parametrize("do", ["", "hang"])
def test_it_dies_with_its_parent(do: str) -> None:
    code = (
        "from tests.scorers.odd_scorers import *\n"
        "from chunk_grpo.scorers.executors.subprocess_scorer import SubprocessScorer\n"
        "from tests.scorers.servers import in_subprocess\n"
        "scorer = SubprocessScorer(KEY, settings(), in_subprocess())\n"
        "scorer.check()\n"
        "print(scorer.pid, flush=True)\n"
        f"scorer.score(batch({do!r}))\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        time.sleep(0.3)
        children = psutil.Process(worker).children()
        parent.kill()
    assert gone(worker, 2.0)
    for child in children:  # `sleep` of a worker that hung
        child.kill()


def test_the_documented_script_scores_in_an_interpreter_without_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # is for this interpreter
    venv.create(tmp_path / "other", with_pip=False)
    python = str(tmp_path / "other" / "bin" / "python")
    page = (ROOT / "docs" / "own_scorers.md").read_text(encoding="utf-8")
    found = re.search(r"^# my_worker\.py\n(.*?)^```", page, re.M | re.S)
    assert found
    check = "import importlib.util\nassert importlib.util.find_spec('chunk_grpo') is None\n"
    (tmp_path / "my_worker.py").write_text(check + found[1])
    executor = in_subprocess(python=python, script=str(tmp_path / "my_worker.py"))
    scorer = SubprocessScorer(KEY, settings(refuses="xx"), executor)
    pictures = batch()
    scores = scorer.score(pictures)
    assert dict(scores.refused) == {2: "the prompt has xx", 3: "the prompt has xx"}
    assert scores.values[:2].tolist() == pytest.approx(pictures.images[:2].mean(axis=(1, 2, 3)) / 255)
    assert (scorer.name, scorer.version, scorer.groupwise) == ("my-brightness", 1, False)
    assert scorer.needs == frozenset({"prompt"})
    other = SubprocessScorer(KEY, settings(refuses="y"), executor)
    assert scorer.spec_hash() != other.spec_hash()
    scorer.close()
    other.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("answer['id'] = 'x'", "answered another question: id must be"),
        ("answer = 'text'", "a malformed message: must be a JSON object, got str"),
    ],
)
def test_a_worker_with_an_answer_to_another_question_is_ended(
    tmp_path: Path, change: str, message: str
) -> None:
    scorer = SubprocessScorer(KEY, settings(), in_subprocess(script=str(tmp_path / "worker.py")))
    (tmp_path / "worker.py").write_text(BY_HAND.format(change=change))
    with pytest.raises(DataError, match=message):
        scorer.score(batch())
    assert scorer.pid is None  # what it would say next is not read
    scorer.close()


@pytest.mark.parametrize(
    ("script", "kind", "message"),
    [
        ("print('hello')", DataError, "sent a malformed message: not JSON"),
        (
            "raise SystemExit('no such package')",
            ConfigError,
            "exit code 1. Last lines of its stderr:\nno such package",
        ),
        (
            "import os; os.kill(os.getpid(), 9)",
            TransientError,
            "was ended by SIGKILL, with nothing on stderr",
        ),
        ('print(\'{"type": "ready", "protocol": 0}\')', DataError, "sent no ready message of protocol 2"),
    ],
)
def test_worker_start_failure_is_reported(
    tmp_path: Path, script: str, kind: type[Exception], message: str
) -> None:
    (tmp_path / "worker.py").write_text(script)
    scorer = SubprocessScorer(KEY, settings(), in_subprocess(script=str(tmp_path / "worker.py")))
    with pytest.raises(kind, match=message):
        scorer.check()
    scorer.close()


def test_an_error_at_the_start_comes_as_it_was_raised() -> None:
    scorer = SubprocessScorer(KEY, settings("no_such_thing"), in_subprocess())
    with pytest.raises(ConfigError, match=r"scorers.odd.source: cannot import .*no_such_thing"):
        scorer.check()
    scorer.close()


def test_missing_python_or_script_is_a_configuration_error(tmp_path: Path) -> None:
    for changes, message in (
        ({"python": "/no/such/python"}, "executors.odd.python: must be a Python interpreter"),
        ({"script": "no_such.py"}, "executors.odd.script: must be a Python file, got 'no_such.py'"),
    ):
        with pytest.raises(ConfigError, match=message):
            SubprocessScorer(KEY, settings(), in_subprocess(**changes)).check()


def test_another_scorer_after_a_restart_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text(BY_HAND.format(change="pass"))
    scorer = SubprocessScorer(KEY, settings(), in_subprocess(script=str(script)))
    scorer.score(batch())
    script.write_text(BY_HAND.format(change="pass").replace("'by-hand'", "'another'"))
    assert scorer.pid is not None
    os.kill(scorer.pid, signal.SIGKILL)
    with pytest.raises(DataError, match="is another scorer after a restart: its identity was by-hand"):
        scorer.score(batch())
    scorer.close()


def test_an_edited_script_is_another_scorer(tmp_path: Path) -> None:
    def spec_hash() -> str:
        scorer = SubprocessScorer(KEY, settings(), in_subprocess(script=str(tmp_path / "worker.py")))
        try:
            return scorer.spec_hash()
        finally:
            scorer.close()

    (tmp_path / "worker.py").write_text(BY_HAND.format(change="pass"))
    before = spec_hash()
    assert spec_hash() == before
    (tmp_path / "worker.py").write_text(BY_HAND.format(change="pass") + "# edited\n")
    assert spec_hash() != before


BY_HAND = """
import json, sys
sys.stdin.readline()
ready = dict(type="ready", protocol=2, name="odd", version=1, needs=[], groupwise=False, spec_hash='by-hand',
             measured={{}}, python="3", packages={{}})
print(json.dumps(ready), flush=True)
for line in sys.stdin:
    question = json.loads(line)
    answer = dict(type="scores", id=question["id"], spec_hash='by-hand', details={{}}, refused={{}})
    answer["values"] = [0.0] * len(question["rows"])
    {change}
    print(json.dumps(answer), flush=True)
"""
