"""SIGTERM at a training stage: it leaves within seconds, wherever it is, and the next run ends with the same bytes.

The stage runs as a process of its own, which sends itself the signal when it enters a certain function for the n-th
time: so the test knows where it was, and can measure how long it took to leave.
"""

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from chunk_grpo.training.state_files import read_state
from tests.checkpoints import checkpoints
from tests.conftest import ROOT, VARIANT, Workspace

pytestmark = [pytest.mark.slow]

SECONDS = 10.0
"""Within which a stage has to leave."""

WRAPPER = """
import functools, os, pathlib, signal, sys, time
from importlib import import_module
from stages.train import Arguments, main
from stages._stage import run_stage

owner, name, count = sys.argv.pop(1), sys.argv.pop(1), int(sys.argv.pop(1))
module, _, kind = owner.partition(":")
place = getattr(import_module(module), kind) if kind else import_module(module)
original, calls = getattr(place, name), []

@functools.wraps(original)
def stopping(*args, **kwargs):
    calls.append(None)
    if len(calls) == count:
        pathlib.Path("stopped_at").write_text(str(time.time()))
        os.kill(os.getpid(), signal.SIGTERM)
    return original(*args, **kwargs)

setattr(place, name, stopping)
sys.exit(run_stage(main, Arguments))
"""


@dataclass(frozen=True)
class Moment:
    """The n-th call of a function, and what the checkpoint then holds."""

    owner: str
    function: str
    call: int
    iteration: int
    updates_done: int | None
    """Updates done in the running iteration; None if none runs."""


TRAINING = "chunk_grpo.training"
MOMENTS = {
    "rollout": Moment(f"{TRAINING}.rollouts", "rollout_sde", 2, iteration=1, updates_done=None),
    "scoring": Moment("chunk_grpo.scorers.reward:Reward", "scores", 2, iteration=0, updates_done=None),
    "first update": Moment(f"{TRAINING}.update:Update", "accumulate_gradient", 3, 1, updates_done=0),
    "second update": Moment(f"{TRAINING}.update:Update", "accumulate_gradient", 2, 0, updates_done=1),
    "held-out": Moment(f"{TRAINING}.heldout", "rollout_ode", 2, iteration=1, updates_done=None),
    "saving": Moment(f"{TRAINING}.checkpoint:CheckpointStore", "begin", 1, iteration=1, updates_done=None),
    "writing": Moment(f"{TRAINING}.trainer:Trainer", "save_policies", 1, iteration=2, updates_done=None),
}


def stop(workspace: Workspace, moment: Moment) -> tuple[int, str, float]:
    """Exit code, messages, and the seconds from the signal to the end of the process."""
    _, options = workspace.options("train")
    command = [sys.executable, "-c", WRAPPER, moment.owner, moment.function, str(moment.call), *options]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        command, cwd=workspace.root, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    seconds = time.time() - float((workspace.root / "stopped_at").read_text())
    return done.returncode, done.stderr, seconds


@pytest.mark.parametrize("where", MOMENTS)
def test_sigterm_ends_training_in_time_and_loses_no_work(where, workspace):
    moment = MOMENTS[where]
    target = workspace.artifacts / "train" / VARIANT / "seed-0"
    untouched = {path.relative_to(target): path.read_bytes() for path in files(target)}
    target.rename(workspace.root / "older")
    code, errors, seconds = stop(workspace, moment)
    print(f"{where}: {seconds:.2f} s")  # noqa: T201  (shown by pytest -rP)
    assert (code, "Traceback" in errors) == (75, False), errors
    assert seconds < SECONDS
    assert not target.exists()
    state = read_state(checkpoints(workspace.root)[-1])
    unfinished = state["extra"]["unfinished"]
    assert state["iteration"] == moment.iteration
    assert (None if unfinished is None else len(unfinished[0]["updates"])) == moment.updates_done
    assert workspace.run("train") == 0
    assert {path.relative_to(target): path.read_bytes() for path in files(target)} == untouched


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]
