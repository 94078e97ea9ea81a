"""Scorers in a process of their own: what a crash, a hang, a foreign script or a strange answer leads to."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
import venv
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from chunk_grpo.config.scorers import InSubprocess
from chunk_grpo.errors import ConfigError, DataError, TransientError
from chunk_grpo.scorers.executors.subprocess_scorer import SubprocessScorer
from chunk_grpo.scorers.executors.wire import WorkerError
from chunk_grpo.scorers.running.external import External
from tests.scorers.odd_scorers import KEY, batch, settings
from tests.scorers.servers import ROOT, in_subprocess

LINES = ROOT / "chunk_grpo" / "scorers" / "workers"


@pytest.fixture(scope="module")
def shared() -> Iterator[SubprocessScorer]:
    """One worker, which is started anew when a test has ended it."""
    others = psutil.Process().children(recursive=True)  # such as a server of the whole session
    scorer = SubprocessScorer(KEY, settings(), in_subprocess())
    yield scorer
    scorer.close()
    assert [each for each in psutil.Process().children(recursive=True) if each not in others] == []


def gone(pid: int, seconds: float = 5.0) -> bool:
    """Whether a process ends in time; an ended one that nobody asked for counts."""
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


def test_the_second_crash_is_told_with_exit_code_and_last_words(shared: SubprocessScorer) -> None:
    with pytest.raises(TransientError) as caught:
        shared.score(batch("exit"))
    assert "ended with exit code 7. Last lines of its stderr:\none line\nsomething is broken\n" in str(
        caught.value
    )
    assert str(caught.value).endswith("This was the second attempt.")
    assert shared.score(batch()).values.shape == (4,)


def test_sys_exit_in_a_scorer_is_a_bug_of_the_scorer(shared: SubprocessScorer) -> None:
    with pytest.raises(WorkerError, match=r"RuntimeError: scorer odd: \S+:odd called sys\.exit\(enough\)"):
        shared.score(batch("sys.exit"))


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


def test_a_process_that_left_its_group_keeps_nobody_waiting(shared: SubprocessScorer, tmp_path: Path) -> None:
    start = time.monotonic()
    with pytest.raises(TransientError, match="exit code 7"):
        shared.score(batch("child", pids=str(tmp_path / "pids"), apart=True))
    assert time.monotonic() - start < 60
    for left in (tmp_path / "pids").read_text().split()[1::2]:
        psutil.Process(int(left)).kill()


def test_it_gets_the_gpu_of_this_process_if_none_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_it_outlives_the_thread_that_started_it() -> None:
    scorer = SubprocessScorer(KEY, settings(), in_subprocess())
    thread = threading.Thread(target=scorer.check)
    thread.start()
    thread.join()
    pid = scorer.pid
    time.sleep(0.2)
    scorer.score(batch())
    assert scorer.pid == pid
    scorer.close()


@pytest.mark.parametrize("do", ["", "hang"] if sys.platform == "linux" else [""])
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


def test_an_interpreter_without_the_package_scores_by_a_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # is for this interpreter
    venv.create(tmp_path / "other", with_pip=False)
    scorer = SubprocessScorer(KEY, settings(offset=0.25), script_of(tmp_path, SOUND))
    assert scorer.score(batch()).values.tolist() == (batch().images[:, 0, 0, 0] + 0.25).tolist()
    assert (scorer.name, scorer.version, scorer.groupwise) == ("first-pixel", 3, False)
    assert scorer.needs == frozenset()
    other = SubprocessScorer(KEY, settings(offset=0.5), script_of(tmp_path, SOUND))
    assert len({scorer.spec_hash(), other.spec_hash()}) == 2
    with pytest.raises(DataError, match=r"^nothing to judge$"):
        scorer.score(batch(count=1))
    scorer.close()
    other.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("answer['keys'].reverse()", "answered another question: keys must be"),
        ("answer['keys'].pop()", "answered another question: keys must be"),
        ("answer['id'] = 'x'", "answered another question: id must be"),
        ("answer['spec_hash'] = 'x'", "answered another question: spec_hash must be"),
        ("answer['type'] = 'ready'", "answered another question: type must be"),
        ("answer['values'] = [None, 'x']", "sent malformed scores"),
        ("del answer['details']", "sent malformed scores"),
        ("answer = 'text'", "a malformed message: must be a JSON object, got str"),
    ],
)
def test_an_answer_to_another_question_is_never_used(tmp_path: Path, change: str, message: str) -> None:
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
        ('print(\'{"type": "ready", "protocol": 0}\')', DataError, "expected a ready message of protocol 1"),
        ('print(\'{"type": "ready", "protocol": 1}\')', DataError, "sent a malformed ready message"),
    ],
)
def test_a_worker_that_does_not_start_is_told(
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


def test_what_cannot_be_run_is_a_configuration_error(tmp_path: Path) -> None:
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


def script_of(folder: Path, text: str) -> InSubprocess:
    (folder / "script.py").write_text(text)
    python = folder / "other" / "bin" / "python"
    return in_subprocess(python=str(python), script=str(folder / "script.py"))


SOUND = f"""
import sys
sys.path.insert(0, {str(LINES)!r})
import lines

def open_worker(start):
    try:
        import chunk_grpo
    except ImportError:
        pass
    else:
        raise RuntimeError("this interpreter has the package")

    def score(batch):
        if len(batch.rows) < 2:
            raise lines.DataError("nothing to judge")
        return [row.pixels[0] + start.settings["options"]["offset"] for row in batch.rows], {{}}

    return lines.Worker("first-pixel", 3, score, needs=())

lines.serve(open_worker)
"""

BY_HAND = """
import json, sys
sys.stdin.readline()
ready = dict(type="ready", protocol=1, name="odd", version=1, needs=[], groupwise=False, spec_hash='by-hand',
             measured={{}}, python="3", packages={{}})
print(json.dumps(ready), flush=True)
for line in sys.stdin:
    question = json.loads(line)
    keys = [row["key"] for row in question["rows"]]
    answer = dict(type="scores", id=question["id"], spec_hash='by-hand', keys=keys, details={{}})
    answer["values"] = [0.0] * len(keys)
    {change}
    print(json.dumps(answer), flush=True)
"""
