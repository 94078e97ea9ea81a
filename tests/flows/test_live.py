"""Progress of a running training, from journals written by hand with a simulated clock."""

import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from chunk_grpo.training import journal
from chunk_grpo.training.journal import FILE, Heading, Journal, read_journal
from flows._live import live_curves, pace
from tests.conftest import VARIANT, Workspace

NOON = 978_350_400.0  # 2001-01-01 12:00:00 UTC


class Clock:
    """A clock that is set."""

    def __init__(self) -> None:
        self.now = NOON

    def time(self) -> float:
        return self.now


@pytest.fixture
def clocked(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(journal, "time", made)
    return made


def heading(done: int = 0) -> Heading:
    return Heading("a", seed=0, iterations=10, done=done)


def write(
    root: Path, clocked: Clock, rewards: Sequence[float], head: Heading, seconds: float = 30.0, ends: bool = False
) -> Path:
    """The journal of a run with a given time per iteration; held-out images come before the first and third."""
    folder = root / "logs" / "chunk" / f"seed-{head.seed}"
    made = Journal(folder, head, [(i, "reward_mean", 0.0) for i in range(1, head.done + 1)])
    if head.done == 0:
        clocked.now += 100
        made.log(0, {"heldout_reward": 0.5})
    for number, reward in enumerate(rewards, start=head.done + 1):
        clocked.now += seconds
        made.log(number, {"reward_mean": reward, "reward_std": 0.1})
        if number == 2:
            made.log(number, {"heldout_reward": 0.625})
    made.close(is_finished=ends)
    return folder / FILE


def shown(root: Path) -> str:
    found = live_curves(root, "chunk", "0")
    assert found is not None
    return found.markdown


def test_before_the_first_iteration_there_is_a_text_alone(tmp_path: Path, clocked: Clock) -> None:
    assert live_curves(tmp_path, "chunk", "0") is None
    Journal(tmp_path / "logs" / "chunk" / "seed-0", heading(), []).close(is_finished=False)
    text = shown(tmp_path)
    assert "![" not in text
    assert "## chunk, training seed 0: iteration 0 of 10\n" in text
    assert "The process started at 2001-01-01 12:00:00 UTC; none of its iterations has ended." in text
    assert "| training | – | – |" in text


def test_shows_current_iteration_and_expected_end(tmp_path: Path, clocked: Clock) -> None:
    """Three iterations of 30 s after 100 s of held-out images; seven are left: 210 s."""
    write(tmp_path, clocked, [0.25, 0.5, 0.75], heading())
    found = live_curves(tmp_path, "chunk", "0")
    assert found is not None
    assert found.key == "reward-chunk-seed-0"
    assert found.markdown.splitlines()[0] == "## chunk, training seed 0: iteration 3 of 10"
    assert (
        "30.0 s per iteration; the last one ended at 2001-01-01 12:03:10 UTC. "
        "3 min 30 s left after that, expected end 2001-01-01 12:06:40 UTC."
    ) in found.markdown
    assert "| training | 0.250 | 0.750 |" in found.markdown
    assert "| held-out | 0.500 | 0.625 |" in found.markdown
    assert 10_000 < len(found.markdown) < 80_000
    assert "![Training reward by iteration](data:image/png;base64," in found.markdown
    clocked.now += 1000
    assert live_curves(tmp_path, "chunk", "0") == found
    assert live_curves(tmp_path, "chunk", "1") is None


def test_pace_averages_the_last_iterations(tmp_path: Path, clocked: Clock) -> None:
    """25 iterations of 10 s, then five of 50 s: of the last 20 gaps 15 are of 10 s, so 20 s on average."""
    head = Heading("a", 0, iterations=100, done=0)
    made = Journal(tmp_path, head, [])
    for number in range(1, 31):
        clocked.now += 10 if number <= 25 else 50
        made.log(number, {"reward_mean": 0.0})
    made.close(is_finished=False)
    record = read_journal(tmp_path / FILE)
    assert record is not None
    assert pace(record) == (20.0, 1400.0)


def test_time_before_the_first_iteration_counts_if_there_is_one_alone(tmp_path: Path, clocked: Clock) -> None:
    """But not what other processes took, before a training was resumed."""
    write(tmp_path / "new", clocked, [0.25], heading())
    assert "2 min 10 s per iteration" in shown(tmp_path / "new")
    write(tmp_path / "resumed", clocked, [0.75], heading(done=6), seconds=40)
    text = shown(tmp_path / "resumed")
    assert "iteration 7 of 10" in text
    assert "40.0 s per iteration" in text and "2 min 00 s left" in text


def test_shows_end_of_training(tmp_path: Path, clocked: Clock) -> None:
    """Also where training has ended early."""
    write(tmp_path, clocked, [0.5] * 4, heading(), ends=True)
    text = shown(tmp_path)
    assert "Training ended at 2001-01-01 12:03:40 UTC." in text
    assert "expected end" not in text
    assert "iteration 4 of 10" in text


@pytest.mark.slow
def test_the_curves_grow_while_the_stage_trains(workspace: Workspace) -> None:
    """The stage as a process of its own, without trackers, looked at until it ends."""
    workspace.edit(lambda raw: raw.update(trackers=[]))
    workspace.schedule(iterations=6)
    logs = workspace.root / "logs"
    shutil.rmtree(logs)  # of the stage that has run before
    seen: list[str] = []
    with workspace.process("train") as process:
        while process.poll() is None:
            found = live_curves(workspace.root, VARIANT, "0")
            if found is not None and found.markdown.splitlines()[0] not in seen:
                seen.append(found.markdown.splitlines()[0])
            time.sleep(0.02)
        _, errors = process.communicate()
    assert process.returncode == 0, errors
    last = live_curves(workspace.root, VARIANT, "0")
    assert last is not None and "Training ended at" in last.markdown
    assert len(seen) >= 4  # a look takes about as long as an iteration of the smoke preset
    assert seen[-1] == f"## {VARIANT}, training seed 0: iteration 6 of 6"
    assert [path.name for path in (logs / VARIANT / "seed-0").iterdir()] == [FILE]
