"""Sharded training in two processes that is killed 20 times ends with the bytes of one that is not."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from chunk_grpo.environment import PROCESSES
from tests import checkpoints
from tests.conftest import VARIANT, Workspace

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

KILLS, LOADING_SHARE, ITERATIONS = 20, 0.2, 12


def newest(folder: Path) -> int:
    """Iteration of the newest checkpoint, or of kept results; 0 without one."""
    if any((folder / ".ckpt").glob("*/results")):
        return ITERATIONS
    return checkpoints.newest(folder)


def forget(workspace: Workspace) -> None:
    shutil.rmtree(workspace.artifacts / "train" / VARIANT, ignore_errors=True)
    shutil.rmtree(workspace.root / ".ckpt", ignore_errors=True)


def kill(process: "subprocess.Popen[str]", whom: str, moments: random.Random) -> None:
    """Kill the launcher with its processes, or one process; then the launcher ends the rest."""
    pair = psutil.Process(process.pid).children()
    if whom == "all" or not pair:
        for each in pair:
            each.suspend()  # one moment for all
        for each in [psutil.Process(process.pid), *pair]:
            each.kill()
    elif whom == "launcher":
        process.kill()
    else:
        moments.choice(pair).kill()


def test_twenty_kills_lose_nothing_that_was_saved(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PROCESSES, "2")
    monkeypatch.setenv("DVC_ROOT", str(workspace.root))  # as under DVC, which may be killed before it has the results
    workspace.schedule(prompts_per_iteration=4, iterations=ITERATIONS, shard_weights=True, checkpoint_every=1)
    forget(workspace)
    workspace.finish("train")
    whole = workspace.trained()
    forget(workspace)
    moments, kills, finished, resumed = random.Random(7), 0, 0, 0
    while kills < KILLS:
        before, whom = newest(workspace.root), moments.choice(("all", "launcher", "process"))
        is_loading, delay = moments.random() < LOADING_SHARE, moments.uniform(0, 2)
        with workspace.process("train") as process:
            deadline = time.monotonic() + 300
            while not is_loading and process.poll() is None and newest(workspace.root) <= before:
                assert time.monotonic() < deadline
                time.sleep(0.002)
            time.sleep(delay)
            if process.poll() is None:
                kill(process, whom, moments)
                kills += 1
            _, errors = process.communicate(timeout=300)
        wait_until_gone(workspace.root)
        if process.returncode == 0:
            assert workspace.trained() == whole
            forget(workspace)
            finished += 1
            continue
        assert process.returncode in (75, -signal.SIGKILL, 128 + signal.SIGKILL), errors
        assert newest(workspace.root) >= before
        resumed += newest(workspace.root) > 0
    workspace.finish("train")
    assert workspace.trained() == whole
    sys.stdout.write(f"{kills} kills, {resumed} times resumed, {finished + 1} times finished\n")
    assert resumed > KILLS / 2


def wait_until_gone(folder: Path) -> None:
    """Wait for the processes of a killed launcher, which save a checkpoint and end."""
    deadline = time.monotonic() + 60
    while any(folder == cwd_of(process) for process in psutil.process_iter()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def cwd_of(process: psutil.Process) -> Path | None:
    try:
        return Path(process.cwd()) if process.pid != os.getpid() else None
    except (psutil.Error, OSError):
        return None
