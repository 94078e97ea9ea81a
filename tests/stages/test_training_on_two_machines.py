"""Training of sharded weights by two launchers: the bytes of one launcher with two processes."""

import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest

from chunk_grpo.environment import PROCESSES
from stages._launch.machines import END_SECONDS, LOST_SECONDS
from tests.checkpoints import newest
from tests.conftest import VARIANT, Workspace
from tests.stages.two_machines import Launcher, Pair
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture
def shared(workspace: Workspace) -> Workspace:
    """A workspace with sharded training still to do."""
    workspace.schedule(prompts_per_iteration=4, iterations=16, shard_weights=True, checkpoint_every=1)
    shutil.rmtree(workspace.artifacts / "train" / VARIANT)
    (workspace.artifacts / "runs" / f"train@{VARIANT}-0.json").unlink()
    return workspace


@pytest.fixture
def expected(shared: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Outputs of two processes of one launcher."""
    shutil.copytree(shared.root, tmp_path / "one")
    alone = Workspace(tmp_path / "one")
    with monkeypatch.context() as patch:
        patch.setenv(PROCESSES, "2")
        alone.finish("train")
    return alone.trained()


@pytest.fixture
def two(shared: Workspace, tmp_path: Path) -> Pair:
    return Pair(shared.root, tmp_path / "notes")


def train(two: Pair, shared: Workspace) -> list[str]:
    module, options = shared.options("train")
    return ["-m", module, *options]


def test_two_machines_write_the_bytes_of_one_where_the_stage_was_started(
    two: Pair, shared: Workspace, expected: dict[str, bytes]
) -> None:
    with two.following() as follower, two.started(0, train(two, shared)) as stage:
        assert stage.ended(300)[0] == 0, stage.messages.read_text()
        follower.says("with exit code 0")
    assert shared.trained() == expected
    assert list((shared.root / ".ckpt").iterdir()) == []


def test_a_lost_machine_ends_the_other_and_the_next_run_goes_on_to_the_same_bytes(
    two: Pair, shared: Workspace, expected: dict[str, bytes]
) -> None:
    """Each machine is lost in turn, at seeded moments after the first checkpoint, while training has iterations left.

    If machine 0 has trained to its end, torch waits up to 300 s for the other one before the launcher can say a word.
    """
    moments, ends = random.Random(21), 0
    victims = iter([1, 0, 1, 0])
    while True:
        victim, before = next(victims, None), newest(shared.root)
        with two.following() as follower, two.started(0, train(two, shared)) as stage:
            if victim is None:
                assert stage.ended(300)[0] == 0, stage.messages.read_text()
                break
            lost, other = (follower, stage) if victim else (stage, follower)
            deadline = time.monotonic() + 300
            while newest(shared.root) == before and stage.process.poll() is None:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            if stage.process.poll() == 0:
                break
            time.sleep(moments.uniform(0, 1))
            if stage.process.poll() == 0:
                break
            kill(lost)
            begun = time.monotonic()
            if victim:
                assert other.ended(LOST_SECONDS + 60)[0] == 75, other.messages.read_text()
                assert "machine 1 of 2 is lost" in other.messages.read_text()
            else:
                other.says(" with exit code ")  # 75: its processes noticed; 0: they had trained to the end
            assert time.monotonic() - begun < LOST_SECONDS + END_SECONDS + 15
            ends += 1
            if (shared.artifacts / "train" / VARIANT / "seed-0").exists():
                break  # lost after the outputs were in place, from when on checkpoints are forgotten
            assert newest(shared.root) > before
    assert ends > 0
    assert shared.trained() == expected


def test_hybrid_sharding_keeps_the_shards_once_and_resumes_to_the_same_bytes(shared: Workspace, tmp_path: Path) -> None:
    """Two processes on each of two machines; all parts are written by those of the first."""
    shared.schedule(hybrid_sharding=True)
    shutil.copytree(shared.root, tmp_path / "whole")
    found: list[dict[str, bytes]] = []
    for first, is_stopped in ((Workspace(tmp_path / "whole"), False), (shared, True)):
        two = Pair(first.root, tmp_path / "notes", processes=2)
        with two.following() as follower:
            if is_stopped:
                with two.started(0, train(two, first)) as stage:
                    wait_for(lambda first=first: newest(first.root) >= 2, 300, "two checkpoints")  # type: ignore[misc]
                    stage.process.terminate()
                    assert stage.ended(300)[0] == 75, stage.messages.read_text()
                parts = {path.name for path in first.root.glob(".ckpt/*/*/part-*")}
                assert parts == {"part-0.safetensors", "part-1.safetensors"}
            with two.started(0, train(two, first)) as stage:
                assert stage.ended(300)[0] == 0, stage.messages.read_text()
            follower.says("with exit code 0")
        found.append(first.trained())
    assert found[0] == found[1]


def kill(launcher: Launcher) -> None:
    """Kill a launcher and its processes at one moment."""
    os.killpg(launcher.process.pid, signal.SIGKILL)
