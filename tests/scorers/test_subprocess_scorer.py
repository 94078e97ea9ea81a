"""Scorers in a process of their own: what a crash, a hang or a foreign script leads to, and who can reach them."""

import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from chunk_grpo.errors import ConfigError, DataError, TransientError
from chunk_grpo.scorers.executors.subprocess_scorer import SubprocessScorer
from tests.scorers.odd_scorers import KEY, batch, settings
from tests.scorers.servers import ROOT, in_subprocess
from tests.waiting import has_ended, wait_for

SCRIPT = ROOT / "tests" / "scorers" / "script_worker.py"
SUMS = [float(image.sum()) for image in batch().images]


def scripted(script: Path = SCRIPT, executor: dict[str, Any] | None = None, **options: Any) -> SubprocessScorer:
    return SubprocessScorer(KEY, settings(**options), in_subprocess(script=str(script), **(executor or {})))


@pytest.fixture
def scorer() -> Iterator[SubprocessScorer]:
    """A script, of which nothing may be left."""
    others = psutil.Process().children(recursive=True)  # such as a server of the whole session
    scorer = scripted()
    yield scorer
    scorer.close()
    assert [each for each in psutil.Process().children(recursive=True) if each not in others] == []


def wait_for_end(pid: int, limit: float = 5.0) -> None:
    wait_for(lambda: has_ended(pid), limit, f"end of process {pid}")


def socket_of(pid: int) -> Path:
    """Where a worker listens."""
    [connection] = [each for each in psutil.Process(pid).net_connections("unix") if "scorer-" in each.laddr][:1]
    return Path(connection.laddr)


class TestFaults:
    def test_a_crash_reports_exit_code_and_output_and_the_next_batch_starts_another(
        self, scorer: SubprocessScorer
    ) -> None:
        scorer.check()
        before = scorer.pid
        with pytest.raises(TransientError) as caught:
            scorer.score(batch("exit"))
        assert str(caught.value) == (
            "scorer odd: its worker process ended with exit code 7. Last lines of its output:\n"
            "one line\nsomething is broken"
        )
        assert before is not None
        wait_for_end(before)
        assert scorer.score(batch()).values.tolist() == SUMS
        assert scorer.pid not in (before, None)

    def test_a_hanging_one_is_killed_with_its_children(self, tmp_path: Path) -> None:
        scorer = scripted(executor={"start_seconds": 4.0, "timeout_seconds": 0.5})
        scorer.score(batch())
        start = time.monotonic()
        with pytest.raises(TransientError, match=r"gave no answer within 0\.5 s and was killed, with no output"):
            scorer.score(batch("hang", pids=str(tmp_path / "pids")))
        assert 0.5 < time.monotonic() - start < 30
        assert scorer.pid is None
        for worker_or_child in (tmp_path / "pids").read_text().split():
            wait_for_end(int(worker_or_child))

    def test_a_worker_that_nobody_waits_for_ends_in_its_batch(self, scorer: SubprocessScorer) -> None:
        """As after Ctrl-C."""

        def interrupt(*arguments: object) -> None:
            raise KeyboardInterrupt

        scorer.check()
        pid = scorer.pid
        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with pytest.raises(KeyboardInterrupt):
                scorer.score(batch("hang"))
        finally:
            signal.signal(signal.SIGALRM, before)
        start = time.monotonic()
        scorer.close()
        assert time.monotonic() - start < 5
        assert pid is not None
        wait_for_end(pid)

    def test_child_outside_process_group_does_not_block(self, tmp_path: Path) -> None:
        start = time.monotonic()
        with pytest.raises(TransientError, match="exit code 7"):
            scripted().score(batch("child", pids=str(tmp_path / "pids"), apart=True))
        assert time.monotonic() - start < 20
        psutil.Process(int((tmp_path / "pids").read_text().split()[1])).kill()


class TestEnd:
    def test_close_closes_the_scorer_there_and_ends_the_process(self, tmp_path: Path) -> None:
        scorer = scripted(closed=str(tmp_path / "closed"))
        scorer.score(batch())
        pid = scorer.pid
        assert pid is not None
        folder = socket_of(pid).parent
        scorer.close()
        assert (tmp_path / "closed").exists()
        assert not psutil.pid_exists(pid)
        assert not folder.exists()
        scorer.close()  # a second time, there is nothing to close

    def test_it_dies_with_its_parent_in_a_batch_too(self) -> None:
        code = (
            "from tests.scorers.test_subprocess_scorer import *\n"
            "scorer = scripted()\n"
            "scorer.check()\n"
            "print(scorer.pid, flush=True)\n"
            "scorer.score(batch('hang'))\n"
        )
        with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE) as parent:
            assert parent.stdout is not None
            worker = int(parent.stdout.readline())
            time.sleep(0.3)
            folder, children = socket_of(worker).parent, psutil.Process(worker).children()
            parent.kill()
        wait_for_end(worker, 2.0)
        assert not folder.exists()
        for child in children:
            child.kill()


class TestReach:
    def test_no_other_user_can_reach_it(self, scorer: SubprocessScorer) -> None:
        scorer.check()
        assert scorer.pid is not None
        assert psutil.Process(scorer.pid).net_connections("inet") == []
        folder = socket_of(scorer.pid).parent
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert folder.stat().st_uid == os.getuid()

    def test_a_long_folder_of_temporary_files_is_not_used(
        self, scorer: SubprocessScorer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The path of a socket has at most 108 bytes, on macOS 104."""
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("a" * 100)))
        assert scorer.score(batch()).values.tolist() == SUMS


class TestScripts:
    def test_worker_defaults_to_gpu_of_this_process(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def told(device: str | None) -> str:
            with pytest.raises(DataError) as caught:
                scripted(executor={"device": device}, do="refuse").check()
            return str(caught.value)

        assert told(None) == "no device but None"
        monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
        monkeypatch.setattr("torch.cuda.current_device", lambda: 3)
        assert (told(None), told("cuda:1")) == ("no device but cuda:3", "no device but cuda:1")

    def test_the_documented_script_scores_in_an_interpreter_without_the_package(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PYTHONPATH", str(ROOT))  # is for this interpreter
        venv.create(tmp_path / "other", with_pip=False)
        python = str(tmp_path / "other" / "bin" / "python")
        page = (ROOT / "docs" / "own_scorers.md").read_text(encoding="utf-8")
        found = re.search(r"^# my_worker\.py\n(.*?)^```", page, re.M | re.S)
        assert found
        check = "import importlib.util\nassert importlib.util.find_spec('chunk_grpo') is None\n"
        (tmp_path / "my_worker.py").write_text(check + found[1])
        scorer, other = (
            scripted(tmp_path / "my_worker.py", {"python": python}, refuses=refuses) for refuses in ("xx", "y")
        )
        pictures = batch()
        scores = scorer.score(pictures)
        assert dict(scores.refused) == {2: "the prompt has xx", 3: "the prompt has xx"}
        assert scores.values[:2].tolist() == pytest.approx(pictures.images[:2].mean(axis=(1, 2, 3)) / 255)
        assert (scorer.name, scorer.version, scorer.groupwise) == ("my-brightness", 1, False)
        assert scorer.needs == frozenset({"prompt"})
        assert scorer.spec_hash() != other.spec_hash()
        scorer.close()
        other.close()

    def test_a_worker_that_is_killed_at_its_start_may_be_started_again(self) -> None:
        with pytest.raises(TransientError, match="its worker process was ended by SIGKILL, with no output"):
            scripted(do="killed").check()

    def test_a_script_that_serves_nothing_cannot_be_started(self, tmp_path: Path) -> None:
        (tmp_path / "worker.py").write_text("print('hello')")
        with pytest.raises(
            ConfigError, match=r"cannot be started: `.*worker\.py` ended with exit code 0\. Last lines .*:\nhello"
        ):
            scripted(tmp_path / "worker.py").check()

    def test_a_script_alone_says_how_it_is_started(self) -> None:
        environment = {"PYTHONPATH": str(ROOT / "chunk_grpo" / "scorers" / "workers")}
        done = subprocess.run(
            [sys.executable, str(SCRIPT)],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout) == (1, "")
        assert "this worker is started by a stage: name it in executors.NAME.script" in done.stderr

    def test_an_error_at_the_start_comes_as_it_was_raised(self) -> None:
        scorer = SubprocessScorer(KEY, settings("no_such_thing"), in_subprocess())
        with pytest.raises(ConfigError, match=r"scorers.odd.source: cannot import .*no_such_thing"):
            scorer.check()

    def test_missing_python_or_script_is_a_configuration_error(self) -> None:
        for changes, message in (
            ({"python": "/no/such/python"}, "executors.odd.python: must be a Python interpreter"),
            ({"script": "no_such.py"}, "executors.odd.script: must be a Python file, got 'no_such.py'"),
        ):
            with pytest.raises(ConfigError, match=message):
                SubprocessScorer(KEY, settings(), in_subprocess(**changes)).check()

    def test_another_scorer_after_a_restart_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "name").write_text("one")
        scorer = scripted(name=str(tmp_path / "name"))
        scorer.score(batch())
        with pytest.raises(TransientError):
            scorer.score(batch("exit"))
        (tmp_path / "name").write_text("another")
        with pytest.raises(DataError, match=r"is another scorer after a restart: .* \(another\)"):
            scorer.score(batch())
        assert scorer.pid is None

    def test_an_edited_script_is_another_scorer(self, tmp_path: Path) -> None:
        def spec_hash() -> str:
            scorer = scripted(tmp_path / "worker.py")
            try:
                return scorer.spec_hash()
            finally:
                scorer.close()

        (tmp_path / "worker.py").write_text(SCRIPT.read_text())
        before = spec_hash()
        (tmp_path / "worker.py").write_text(SCRIPT.read_text() + "# edited\n")
        assert spec_hash() != before
