"""chunk_grpo/orchestration/guard.py: no process of a command outlives whoever asked for it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from chunk_grpo.orchestration.guard import supervised
from tests.waiting import has_ended, wait_for

CHILD = """
import os, signal, sys, time
from pathlib import Path
folder, kind = Path(sys.argv[1]), sys.argv[2]
def leave(number, frame):
    if kind == "slow":
        time.sleep(0.5)
    (folder / "left").write_text("saved")
    sys.exit(75)
signal.signal(signal.SIGTERM, signal.SIG_IGN if kind == "deaf" else leave)
(folder / "pid.new").write_text(str(os.getpid()))
(folder / "pid.new").rename(folder / "pid")
time.sleep(60)
"""
"""Says its number, then works for a minute; on SIGTERM it saves and leaves, at once or slowly, or is deaf."""

LEADER = "import subprocess, sys; sys.exit(subprocess.run([sys.executable, *sys.argv[1:]]).returncode)"
"""Parent like DVC: starts the child and ends at once on SIGTERM."""


def command(folder: Path, kind: str) -> list[str]:
    (folder / "child.py").write_text(CHILD)
    return [sys.executable, "-c", LEADER, str(folder / "child.py"), str(folder), kind]


def written_pid(folder: Path) -> int:
    wait_for((folder / "pid").exists, 30, "the child")
    return int((folder / "pid").read_text())


@pytest.mark.parametrize(
    ("code", "expected"),
    [("pass", 0), ("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 137)],
)
def test_returns_exit_code_of_command(code: str, expected: int) -> None:
    assert subprocess.run(supervised([sys.executable, "-c", code], 1)).returncode == expected


def test_sigterm_waits_until_every_process_has_saved(tmp_path: Path) -> None:
    """Also for a child whose parent has left at once."""
    process = subprocess.Popen(supervised(command(tmp_path, "slow"), 20))
    child = written_pid(tmp_path)
    process.terminate()
    process.wait(10)
    assert (tmp_path / "left").read_text() == "saved"
    assert has_ended(child)


def test_process_ignoring_sigterm_is_killed_after_timeout(tmp_path: Path) -> None:
    process = subprocess.Popen(supervised(command(tmp_path, "deaf"), 0.5))
    child = written_pid(tmp_path)
    start = time.monotonic()
    process.terminate()
    process.wait(10)
    assert 0.4 < time.monotonic() - start < 5
    assert has_ended(child)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's death signal")
@pytest.mark.parametrize("killed", ["parent", "guard"])
def test_killing_parent_or_guard_leaves_no_process(tmp_path: Path, killed: str) -> None:
    code = (
        "import subprocess, sys; from chunk_grpo.orchestration.guard import supervised\n"
        "process = subprocess.Popen(supervised(sys.argv[1:], 5)); print(process.pid, flush=True); process.wait()"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, *command(tmp_path, "quick")], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    guard = int(parent.stdout.readline())
    child = written_pid(tmp_path)
    leader = psutil.Process(child).ppid()
    os.kill(parent.pid if killed == "parent" else guard, signal.SIGKILL)
    for pid in (guard, leader, *([child] if killed == "parent" else [])):
        wait_for(lambda pid=pid: has_ended(pid), 10, "the end")
    parent.kill()
    parent.wait()
    parent.stdout.close()
    if killed == "guard":
        # A stage asks the kernel itself to end with its parent; this one does not.
        psutil.Process(child).kill()


def test_remaining_children_of_command_are_ended(tmp_path: Path) -> None:
    (tmp_path / "child.py").write_text(CHILD)
    code = "import subprocess, sys, time; subprocess.Popen([sys.executable, *sys.argv[1:]]); time.sleep(1)"
    start = time.monotonic()
    arguments = [str(tmp_path / "child.py"), str(tmp_path), "quick"]
    assert subprocess.run(supervised([sys.executable, "-c", code, *arguments], 5)).returncode == 0
    assert time.monotonic() - start < 10
    assert has_ended(written_pid(tmp_path))


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's death signal")
@pytest.mark.parametrize("gone", [False, True])
def test_a_process_can_ask_to_end_with_its_parent(gone: bool) -> None:
    child = (
        "import os, sys, time; from chunk_grpo.orchestration.guard import die_with_parent\n"
        f"die_with_parent(os.getppid() {'+ 1' if gone else ''}); print(os.getpid(), flush=True); time.sleep(60)"
    )
    code = f"import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', {child!r}]).returncode)"
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout as output:
        if gone:
            assert parent.wait(20) != 0
        else:
            pid = int(output.readline())
            parent.kill()
            parent.wait()
            wait_for(lambda: has_ended(pid), 10, "the end")
