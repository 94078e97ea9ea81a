"""chunk_grpo/stopping.py: a stage's process ends with its parent and by a signal, from its first milliseconds on."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from chunk_grpo import environment
from chunk_grpo.errors import ConfigError, Stopped
from chunk_grpo.stopping import STOP_SECONDS, StopSignal, stop_seconds
from tests.waiting import has_ended, wait_for

ROOT = Path(__file__).resolve().parents[1]
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
linux = pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's own")

SLOW = """
from pathlib import Path
Path("begun").touch()
import time
for _ in range(6000):
    time.sleep(0.01)
"""
"""A stage's module that is long at its imports: in many steps, between which Python looks for signals.

A signal just before a single long sleep would be seen after it only.
"""

TRAINING = """
import sys, time
from pathlib import Path
from chunk_grpo.errors import Stopped
from chunk_grpo.progress import Meter
from chunk_grpo.stopping import STOP

try:
    with STOP.raised(), STOP.deferred():
        with Meter("training", 10**9) as meter:
            Path("begun").touch()
            while not STOP.requested:
                time.sleep(0.01)
            for _ in range(100):  # the end of the iteration
                meter.advance()
                time.sleep(0.01)
                print("a line", flush=True)
        for _ in range(int(sys.argv[1])):
            time.sleep(0.1)
        Path("checkpoint").touch()
except Stopped as error:
    sys.exit(error.exit_code)
"""
"""A stage's module that shows its progress, and saves when it is stopped; its argument is how slowly."""

DVC = """
import os, subprocess, sys
os.environ["DVC_STAGE"] = "dvc.yaml:slow"
child = subprocess.Popen([sys.argv[1], "-c", f"exec {sys.executable} -m stages.slow"])
print(child.pid, flush=True)
child.wait()
"""
"""Parent like DVC: starts a stage by a shell in its own process group."""

ADOPTING = """
import os, subprocess, sys, time
from chunk_grpo import guard
guard.adopt_orphans()
dvc = subprocess.Popen([sys.executable, *sys.argv[1:]], start_new_session=True, stdout=subprocess.PIPE)
child = int(dvc.stdout.readline())
os.kill(child, 19)  # it stops before it can tell the kernel anything
dvc.kill()
dvc.wait()
os.kill(child, 18)
print(os.waitpid(child, 0)[1], flush=True)
"""
"""Adopts the orphans of what it starts, as a container's or a session's first process does."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Folder with test stages below the real `stages/__init__.py`."""
    (tmp_path / "stages").mkdir()
    for name, text in {"__init__": (ROOT / "stages/__init__.py").read_text(), "slow": SLOW}.items():
        (tmp_path / "stages" / f"{name}.py").write_text(text)
    (tmp_path / "stages" / "training.py").write_text(TRAINING)
    return tmp_path


@contextmanager
def started(folder: Path, *command: str, **options: object) -> Iterator[subprocess.Popen[str]]:
    """A Python process in that folder, killed on leaving."""
    environment = os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    with subprocess.Popen(  # type: ignore[call-overload]
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        text=True,
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", SIGNALS)
def test_a_stop_signal_at_the_imports_ends_with_one_sentence(number: signal.Signals, folder: Path) -> None:
    with started(folder, "-m", "stages.slow") as process:
        wait_for((folder / "begun").exists, 30, "begun")
        process.send_signal(number)
        _, errors = process.communicate(timeout=10)
    assert process.returncode == 75
    assert errors == (
        f"stopped by {number.name}. Run the same command again; a training resumes from its newest checkpoint.\n"
    )


@linux
@pytest.mark.parametrize("shell", ["bash", "dash"])
@pytest.mark.parametrize("delay", [0, 0.01, 0.04, 0.3])
def test_a_stage_ends_with_dvc_at_any_moment(shell: str, delay: float, folder: Path) -> None:
    with started(folder, "-c", DVC, shell, start_new_session=True) as dvc:
        assert dvc.stdout is not None
        child = int(dvc.stdout.readline())
        time.sleep(delay)
        dvc.kill()
    wait_for(lambda: has_ended(child), 30, "the stage's end")


@linux
def test_stage_orphaned_during_startup_ends(folder: Path) -> None:
    with started(folder, "-c", ADOPTING, "-c", DVC, "dash") as reaper:
        told, errors = reaper.communicate(timeout=20)
    assert os.waitstatus_to_exitcode(int(told)) == 75, errors
    assert not (folder / "begun").exists()


@linux
def test_the_run_ends_with_make(folder: Path) -> None:
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(sys.executable)
    run = folder / "bin" / "chunk-grpo"
    run.write_text("#!/bin/sh\necho $$ > pid.new\nmv pid.new pid\nexec sleep 60\n")
    run.chmod(0o755)
    command = ["make", "-f", str(ROOT / "Makefile"), "-o", ".venv/.installed", f"BIN={run.parent}", "run"]
    (folder / "chunk_grpo").symlink_to(ROOT / "chunk_grpo")
    with subprocess.Popen(command, cwd=folder) as make:
        wait_for((folder / "pid").exists, 30, "the run")
        make.kill()
    wait_for(lambda: has_ended(int((folder / "pid").read_text())), 30, "the end of the run")


def test_the_second_ctrl_c_ends_a_training_that_saves_at_once(folder: Path) -> None:
    with started(folder, "-m", "stages.training", "600") as process:
        wait_for((folder / "begun").exists, 30, "begun")
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)  # as the launcher passes it on: no second Ctrl-C
        time.sleep(1.5)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=10)
    assert process.returncode == -signal.SIGINT
    assert "Traceback" not in errors
    assert not (folder / "checkpoint").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_training_is_saved_when_nobody_reads_its_lines(number: signal.Signals, folder: Path) -> None:
    """Nobody reads after Prefect killed the flow run, 30 s after its stop request, or a terminal was closed."""
    ours, theirs = os.pipe()
    with started(folder, "-m", "stages.training", "1", stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        wait_for((folder / "begun").exists, 30, "begun")
        os.close(ours)
        process.send_signal(number)
        assert process.wait(20) == 75
    assert (folder / "checkpoint").exists()


def test_an_ignored_signal_stays_ignored(folder: Path) -> None:
    """nohup ignores SIGHUP, a shell ignores SIGINT for what it runs in the background."""
    ignoring = (
        "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); "
        "signal.signal(signal.SIGINT, signal.SIG_IGN); "
        "os.execv(sys.executable, [sys.executable, '-m', 'stages.slow'])"
    )
    with started(folder, "-c", ignoring) as process:
        wait_for((folder / "begun").exists, 30, "begun")
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert process.poll() is None
        process.terminate()
        assert process.wait(10) == 75


def test_stop_signal_raises_at_once_or_is_deferred() -> None:
    stop = StopSignal()
    with pytest.raises(Stopped, match="stopped by SIGTERM"), stop.raised():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)
    patient, reached = StopSignal(), False
    with pytest.raises(Stopped, match="stopped by SIGHUP"), patient.raised(), patient.deferred():
        os.kill(os.getpid(), signal.SIGHUP)
        while not patient.requested:
            time.sleep(0.01)
        reached = True
    assert reached
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_the_time_of_a_stop_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert stop_seconds() == STOP_SECONDS
    monkeypatch.setenv(environment.STOP_SECONDS, "90")
    assert stop_seconds() == 90
    for value in ("0", "soon"):
        monkeypatch.setenv(environment.STOP_SECONDS, value)
        with pytest.raises(ConfigError, match=f"{environment.STOP_SECONDS}: must be a whole number of at least 1,"):
            stop_seconds()
