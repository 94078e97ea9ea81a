"""Training of sharded weights by two launchers with a folder each: the bytes of one launcher with two processes."""

import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest

from chunk_grpo.environment import CHECKPOINTS, PROCESSES
from chunk_grpo.training.journal import FILE, read_journal
from stages._launch.group import FAIL_SECONDS
from stages._launch.machines import LOST_SECONDS
from tests.conftest import VARIANT, Workspace
from tests.stages.two_machines import Launcher, Pair, pair
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture
def shared(workspace: Workspace) -> Workspace:
    """A workspace with sharded training still to do."""
    workspace.schedule(prompts_per_iteration=4, iterations=4, shard_weights=True, checkpoint_every=1)
    shutil.rmtree(workspace.artifacts / "train" / VARIANT)
    (workspace.artifacts / "runs" / f"train@{VARIANT}-0.json").unlink()
    return workspace


def outputs(workspace: Workspace) -> dict[str, bytes]:
    """Weights and metrics."""
    return {
        name: content for name, content in workspace.files().items() if name.startswith(f"train/{VARIANT}/")
    }


@pytest.fixture
def expected(shared: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Outputs of two processes of one launcher."""
    shutil.copytree(shared.root, tmp_path / "one")
    alone = Workspace(tmp_path / "one")
    with monkeypatch.context() as patch:
        patch.setenv(PROCESSES, "2")
        with alone.process("train") as process:
            _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return outputs(alone)


@pytest.fixture
def two(shared: Workspace, tmp_path: Path) -> Pair:
    """The second machine has a folder without inputs."""
    (tmp_path / "second").mkdir()
    return pair(shared.root, tmp_path / "second")


def train(two: Pair, shared: Workspace) -> list[str]:
    module, options = shared.options("train")
    return ["-m", module, *options]


def newest(folder: Path) -> int:
    """Iteration of the newest checkpoint; 0 without one."""
    names = [path.stem for path in (folder / ".ckpt").glob("*/iteration-*.pt")]
    return max((int(name.removeprefix("iteration-")) for name in names), default=0)


def test_two_machines_write_the_bytes_of_one_where_the_stage_was_started(
    two: Pair, shared: Workspace, expected: dict[str, bytes]
) -> None:
    with two.following() as follower, two.started(0, train(two, shared)) as stage:
        assert stage.ended(300)[0] == 0, stage.messages.read_text()
        follower.says("with exit code 0")
    assert outputs(shared) == expected
    second = two.folders[1]
    assert not (second / "artifacts" / "train").exists()
    assert list((second / ".ckpt").iterdir()) == list((shared.root / ".ckpt").iterdir()) == []


def test_a_lost_machine_ends_the_other_and_the_next_run_goes_on_to_the_same_bytes(
    two: Pair, shared: Workspace, expected: dict[str, bytes]
) -> None:
    """Each machine is lost in turn, at seeded moments after the first checkpoint, until training has ended."""
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
            time.sleep(moments.uniform(0, 2))
            if stage.process.poll() == 0:
                break
            kill(lost)
            begun = time.monotonic()
            if victim:
                assert other.ended(LOST_SECONDS + 60)[0] == 75, other.messages.read_text()
                assert "machine 1 of 2 is lost" in other.messages.read_text()
            else:
                other.says("machine 0 of 2 is lost")
            assert time.monotonic() - begun < LOST_SECONDS + FAIL_SECONDS + 15
            ends += 1
            if (shared.artifacts / "train" / VARIANT / "seed-0").exists():
                break  # lost after the outputs were in place, from when on checkpoints are forgotten
            assert newest(shared.root) > before
    assert ends > 0
    assert outputs(shared) == expected


def test_two_new_machines_go_on_from_copies_that_each_of_two_lost_ones_made(
    two: Pair, shared: Workspace, expected: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Machine 0 alone has the setting. The new machines have no checkpoints, and their disks get all parts."""
    bucket = tmp_path / "bucket"
    with two.following() as follower, monkeypatch.context() as patch:
        patch.setenv(CHECKPOINTS, str(bucket))
        with two.started(0, train(two, shared)) as stage:
            wait_for(lambda: newest(shared.root) >= 3, 300, "three checkpoints")
            kill(stage)
            kill(follower)
    (key,) = bucket.iterdir()
    parts = {path.name for path in key.glob("*.shards-*/*")}
    assert parts == {"__0_0.distcp", "__1_0.distcp"}
    shutil.rmtree(shared.root / ".ckpt")
    (tmp_path / "third").mkdir()
    again = pair(shared.root, tmp_path / "third")
    with again.following(), monkeypatch.context() as patch:
        patch.setenv(CHECKPOINTS, str(bucket))
        with again.started(0, train(again, shared)) as stage:
            assert stage.ended(300)[0] == 0, stage.messages.read_text()
    assert outputs(shared) == expected
    record = read_journal(shared.root / "logs" / VARIANT / "seed-0" / FILE)
    assert record is not None and record.heading.done >= 2
    assert not list(bucket.rglob("*.pt")) and not list(bucket.rglob("*.distcp"))


def test_hybrid_sharding_keeps_all_shards_on_each_disk_and_resumes_to_the_same_bytes(
    shared: Workspace, tmp_path: Path
) -> None:
    """Two processes on each of two machines."""
    shared.schedule(hybrid_sharding=True)
    shutil.copytree(shared.root, tmp_path / "whole")
    found: dict[str, dict[str, bytes]] = {}
    for name in ("whole", "stopped"):
        first = Workspace(tmp_path / name if name == "whole" else shared.root)
        (tmp_path / f"{name}-second").mkdir()
        two = pair(first.root, tmp_path / f"{name}-second", processes=2)
        with two.following() as follower:
            if name == "stopped":
                with two.started(0, train(two, first)) as stage:
                    wait_for(lambda first=first: newest(first.root) >= 2, 300, "two checkpoints")  # type: ignore[misc]
                    stage.process.terminate()
                    assert stage.ended(300)[0] == 75, stage.messages.read_text()
                names = [
                    {path.name for path in folder.glob(".ckpt/*/*.shards-1/*.distcp")}
                    for folder in two.folders
                ]
                assert names[0] == names[1] == {"__0_0.distcp", "__1_0.distcp"}
            with two.started(0, train(two, first)) as stage:
                assert stage.ended(300)[0] == 0, stage.messages.read_text()
            follower.says("with exit code 0")
        found[name] = outputs(first)
    assert found["stopped"] == found["whole"]


def kill(launcher: Launcher) -> None:
    """Kill a launcher and its processes at one moment."""
    os.killpg(launcher.process.pid, signal.SIGKILL)
