"""A training loses its machine and disk several times; another machine resumes it from a bucket."""

import random
import shutil
import sys
import time
from pathlib import Path

import pytest

from chunk_grpo.artifacts.storage import sizes_below
from chunk_grpo.environment import CHECKPOINTS, PROCESSES
from chunk_grpo.training.journal import FILE, read_journal
from stages.train import TIMED
from tests.conftest import VARIANT, Workspace
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

LOSSES = 2


def outputs(machine: Workspace) -> dict[str, bytes]:
    """Weights and metrics."""
    return {name: content for name, content in machine.files().items() if name.startswith(f"train/{VARIANT}/")}


def journal(machine: Workspace) -> tuple[int, dict[int, dict[str, float]]]:
    """Iterations that were done when training began, and metrics without measured seconds."""
    record = read_journal(machine.root / "logs" / VARIANT / "seed-0" / FILE)
    assert record is not None
    return record.heading.done, {
        iteration: {name: value for name, value in metrics.items() if not name.startswith(TIMED)}
        for iteration, metrics in record.metrics.items()
    }


def logged(machine: Workspace) -> int:
    """Number of iterations that the running training has done."""
    record = read_journal(machine.root / "logs" / VARIANT / "seed-0" / FILE)
    return 0 if record is None else len(record.times)


def machine_at(planned: Workspace, root: Path) -> Workspace:
    """A clone of its own, with the inputs of the training, without outputs and checkpoints."""
    shutil.copytree(planned.root, root, ignore=shutil.ignore_patterns(".ckpt", "logs"))
    return Workspace(root)


def finish(machine: Workspace) -> None:
    with machine.process("train") as process:
        _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors


@pytest.fixture
def planned(workspace: Workspace) -> Workspace:
    """A workspace in which a training with a best policy is the next stage."""
    workspace.edit(lambda raw: raw["train"]["heldout"].update(keep_best=True))
    workspace.schedule(prompts_per_iteration=4, iterations=8, checkpoint_every=1)
    shutil.rmtree(workspace.artifacts / "train" / VARIANT)
    return workspace


@pytest.mark.parametrize(("processes", "sharded"), [(1, False), (2, True)], ids=["one process", "sharded"])
def test_lost_machines_cost_time_alone(
    processes: int, sharded: bool, planned: Workspace, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PROCESSES, str(processes))
    planned.schedule(shard_weights=sharded)
    whole = machine_at(planned, tmp_path / "whole")
    finish(whole)
    monkeypatch.setenv(CHECKPOINTS, f"{bucket}/checkpoints")
    moments, begun, lost = random.Random(3), [], 0
    while True:
        machine = machine_at(planned, tmp_path / f"machine-{lost}")
        with machine.process("train") as process:
            if lost < LOSSES:
                enough = moments.randint(3, 4)  # the save before last has waited for a copy
                wait_for(
                    lambda: process.poll() is not None or logged(machine) >= enough,  # noqa: B023
                    300,
                    f"{enough} iterations",
                )
                time.sleep(moments.uniform(0, 0.5))
                process.kill()
            _, errors = process.communicate(timeout=600)
        assert process.returncode in (0, -9), errors
        begun.append(journal(machine)[0])
        if process.returncode == 0:
            break
        lost += 1
        if (machine.artifacts / "train" / VARIANT / "seed-0").exists():
            break  # lost after the outputs were in place
        shutil.rmtree(machine.root)
    sys.stdout.write(f"{lost} machines lost; trainings began after {begun} iterations\n")
    assert outputs(machine) == outputs(whole)
    assert journal(machine)[1] == journal(whole)[1]
    assert lost >= 1 and begun[0] == 0 and begun[1:] == sorted(begun[1:]) and begun[1] > 0
    if process.returncode == 0:
        assert sizes_below(bucket) == {}
