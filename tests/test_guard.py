"""chunk_grpo/guard.py: no process of a script outlives whoever asked for it."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from chunk_grpo.guard import supervised
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

SCRIPT = "import subprocess, sys; sys.exit(subprocess.run([sys.executable, *sys.argv[1:]]).returncode)"
"""Like DVC: starts a process, and ends as it does."""


def script(folder: Path, code: str, *arguments: str) -> list[str]:
    (folder / "script.py").write_text(code)
    return [str(folder / "script.py"), *arguments]


def command(folder: Path, kind: str) -> list[str]:
    """A script that starts a process which starts the child, and which ends at once on SIGTERM."""
    (folder / "child.py").write_text(CHILD)
    return script(folder, SCRIPT, "-c", SCRIPT, str(folder / "child.py"), str(folder), kind)


def started(arguments: list[str], seconds: float) -> subprocess.Popen[bytes]:
    return subprocess.Popen(supervised(arguments, seconds), start_new_session=True)


def written_pid(folder: Path) -> int:
    wait_for((folder / "pid").exists, 30, "the child")
    return int((folder / "pid").read_text())


@pytest.mark.parametrize(("code", "expected"), [("pass", 0), ("raise SystemExit(3)", 3)])
def test_returns_exit_code_of_script(tmp_path: Path, code: str, expected: int) -> None:
    assert started(script(tmp_path, code), 1).wait(30) == expected


def test_sigterm_ends_a_script_that_runs_nothing(tmp_path: Path) -> None:
    code = "import time; from pathlib import Path; Path(__file__).with_name('pid').write_text('1'); time.sleep(60)"
    process = started(script(tmp_path, code), 20)
    written_pid(tmp_path)
    process.terminate()
    assert process.wait(10) == -signal.SIGTERM


@pytest.mark.parametrize(("kind", "limit", "least"), [("slow", 20, 0), ("deaf", 0.5, 0.4)])
def test_sigterm_waits_until_every_process_has_saved_or_time_is_over(
    tmp_path: Path, kind: str, limit: float, least: float
) -> None:
    """Also for a child whose parent has left at once; the script itself waits for the deaf one."""
    whole = command(tmp_path, kind)
    process = started(whole if kind == "slow" else [whole[0], *whole[3:]], limit)
    child = written_pid(tmp_path)
    start = time.monotonic()
    process.terminate()
    process.wait(10)
    assert least < time.monotonic() - start < 5
    assert (tmp_path / "left").exists() == (kind == "slow")
    assert has_ended(child)


def test_script_sees_how_its_process_ended_after_sigterm(tmp_path: Path) -> None:
    (tmp_path / "child.py").write_text(CHILD)
    process = started(script(tmp_path, SCRIPT, str(tmp_path / "child.py"), str(tmp_path), "slow"), 20)
    written_pid(tmp_path)
    process.terminate()
    assert process.wait(10) == 75


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's death signal")
def test_killing_the_parent_leaves_no_process(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys; from chunk_grpo.guard import supervised\n"
        "process = subprocess.Popen(supervised(sys.argv[1:], 5), start_new_session=True)\n"
        "print(process.pid, flush=True); process.wait()"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, *command(tmp_path, "quick")], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    with parent.stdout as output:
        guard = int(output.readline())
        child = written_pid(tmp_path)
        leader = psutil.Process(child).ppid()
        parent.kill()
        parent.wait()
        for pid in (guard, leader, child):
            wait_for(lambda pid=pid: has_ended(pid), 10, "the end")
    assert (tmp_path / "left").read_text() == "saved"


@pytest.mark.parametrize("kind", ["quick", "deaf"])
def test_remaining_children_of_script_are_ended(tmp_path: Path, kind: str) -> None:
    (tmp_path / "child.py").write_text(CHILD)
    code = (
        "import subprocess, sys, time; from pathlib import Path\n"
        "subprocess.Popen([sys.executable, *sys.argv[1:]])\n"
        "while not Path(sys.argv[2], 'pid').exists(): time.sleep(0.05)\n"
    )
    arguments = [str(tmp_path / "child.py"), str(tmp_path), kind]
    assert started(script(tmp_path, code, *arguments), 1).wait(30) == 0
    assert has_ended(written_pid(tmp_path))


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's death signal")
@pytest.mark.parametrize("gone", [False, True])
def test_a_process_can_ask_to_end_with_its_parent(gone: bool) -> None:
    child = (
        "import os, sys, time; from chunk_grpo.guard import die_with_parent\n"
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
