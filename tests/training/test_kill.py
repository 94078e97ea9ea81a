"""A training stage that is killed again and again ends with the bytes of one that nobody touched.

The stage runs as a process by its own command line. SIGKILL comes at seeded moments: while it loads, some iterations
after it went on, and while a checkpoint is written. Iterations are seen from checkpoints, so that other work on the
machine moves no kill. That training has begun is seen from its TensorBoard file, which every process opens anew just
before its first iteration.
"""

import os
import random
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from chunk_grpo.training.journal import FILE, read_journal
from chunk_grpo.training.state_files import MANIFEST
from stages.train import TIMED
from tests.checkpoints import newest
from tests.conftest import ORDER, VARIANT, Workspace, new_workspace

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

Phase = Literal["loading", "training", "saving"]
LOADING_SECONDS, ITERATIONS = 5.0, 4
"""Kills come up to so long after the process's start, or so many iterations after the checkpoint it went on from."""

EVERYTHING: dict[str, Any] = {
    "lora": {"rank": 2, "alpha": 4.0, "targets": ["to_q", "to_v"]},
    "ema_decay": 0.5,
    "kl_coef": 0.05,
    "old_log_probs": "training",
    "learning_rate": 1e-3,
}
"""Settings under which a checkpoint holds all that it ever holds: adapter, averaged weights, best policy, reference,
evaluated old log-probabilities; the plan follows the policy besides."""


@dataclass
class Story:
    """Events of a run."""

    died: Counter[Phase] = field(default_factory=Counter)
    """How often it died in each phase."""
    resumed: list[int] = field(default_factory=list)
    """Iterations of the checkpoints that training went on from."""
    finished: int = 0
    """How often it came to its end."""

    def __str__(self) -> str:
        return f"died in {dict(self.died)}; went on from iterations {self.resumed}; finished {self.finished} times"


@dataclass(frozen=True)
class Victim:
    """A workspace whose training is killed."""

    workspace: Workspace
    iterations: int

    def start(self) -> "subprocess.Popen[str]":
        return self.workspace.process("train")

    def outputs(self) -> dict[str, bytes]:
        """Weights and metrics, without the measured seconds."""
        files = self.workspace.files().items()
        return {name: content for name, content in files if name.startswith(f"train/{VARIANT}/")}

    def journal(self) -> dict[int, dict[str, float]]:
        """Metrics of the running training without measured seconds."""
        record = read_journal(self.workspace.root / "logs" / VARIANT / "seed-0" / FILE)
        assert record is not None and record.ended is not None
        return {
            iteration: {name: value for name, value in metrics.items() if not name.startswith(TIMED)}
            for iteration, metrics in record.metrics.items()
        }

    def begun(self) -> int:
        """Number of processes that began to train."""
        # Unlike rglob, walk passes over a draft's folder that goes away meanwhile.
        files = (name for _, _, names in os.walk(self.workspace.root / "logs") for name in names)
        return sum(name.startswith("events.") for name in files)

    def newest(self) -> int:
        """Iteration of the newest checkpoint; 0 when there is none."""
        return newest(self.workspace.root)

    def partial(self) -> set[tuple[str, int]]:
        """The checkpoints that are being written, or were when their process died."""
        found = (self.workspace.root / ".ckpt").glob("*/iteration-*")
        return {(path.name, path.stat().st_ino) for path in found if not (path / MANIFEST).exists()}

    def live(self, phase: Phase, iterations: int, delay: float, story: Story) -> None:
        """One process, from its start to its violent death or its end."""
        begun, kept, partial = self.begun(), self.newest(), self.partial()
        with self.start() as process:
            if phase != "loading":
                _wait(process, lambda: self.begun() > begun and self.newest() >= kept + iterations)
            time.sleep(delay)
            if phase == "saving":
                _wait(process, lambda: bool(self.partial() - partial))
            process.kill()
            _, errors = process.communicate()
        if process.returncode == 0:
            story.finished += 1
            return
        assert process.returncode == -9, errors
        if self.begun() == begun:
            story.died["loading"] += 1
            return
        story.died["saving" if self.partial() - partial else "training"] += 1
        story.resumed += [kept] if kept else []


def _wait(process: "subprocess.Popen[str]", happened: Callable[[], bool]) -> None:
    """Wait until it has happened or the process has ended."""
    deadline = time.monotonic() + 300
    while process.poll() is None and not happened():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A workspace in which training is the next stage."""
    made = new_workspace(tmp_path_factory.mktemp("planned"))
    for stage in ORDER[: ORDER.index("train")]:
        assert made.run(stage) == 0, stage
    return made


def victim(planned: Workspace, root: Path, variant: dict[str, Any], train: dict[str, Any]) -> Victim:
    """A copy of the workspace with other settings."""
    shutil.copytree(planned.root, root)
    made = Workspace(root)
    made.edit(lambda raw: raw["variants"][VARIANT].update(variant))
    made.edit(lambda raw: raw["train"]["heldout"].update(keep_best=True))
    made.schedule(**train)
    assert made.run("chunk_boundaries") == 0
    return Victim(made, train["iterations"])


PHASES: tuple[Phase, ...] = ("saving", "training", "training", "loading", "training", "training")
"""Phases in which the run is killed, in order."""


def ends_as_if_untouched(made: Victim, kills: int) -> Story:
    """Kill it so often, and compare with an untouched run each time that it comes to its end."""
    seconds = finish(made) / made.iterations
    untouched, journal = made.outputs(), made.journal()
    random_, story = random.Random(0), Story()
    assert untouched.keys() >= {f"train/{VARIANT}/seed-0/metrics.parquet"}
    shutil.rmtree(made.workspace.artifacts / "train")
    while (died := sum(story.died.values())) < kills:
        finished, phase = story.finished, PHASES[died % len(PHASES)]
        delay = random_.uniform(0, LOADING_SECONDS if phase == "loading" else seconds)
        made.live(phase, random_.randint(0, ITERATIONS), delay, story)
        if story.finished > finished:  # before the kill came: compare, and begin anew
            assert (made.outputs(), made.journal()) == (untouched, journal)
            shutil.rmtree(made.workspace.artifacts / "train")
    finish(made)
    assert (made.outputs(), made.journal()) == (untouched, journal)
    return story


def finish(made: Victim) -> float:
    """Run to the end, which leaves no checkpoint; the seconds that training took."""
    begun = made.begun()
    with made.start() as process:
        _wait(process, lambda: made.begun() > begun)
        start = time.monotonic()
        _wait(process, (made.workspace.artifacts / "train" / VARIANT / "seed-0").exists)
        seconds = time.monotonic() - start
        _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert list((made.workspace.root / ".ckpt").iterdir()) == []
    return seconds


@pytest.mark.parametrize(
    ("kills", "variant", "settings", "least"),
    [
        (25, {}, {"iterations": 24, "checkpoint_every": 2}, {"begun": 15, "saving": 3, "resumed": 12, "latest": 8}),
        (
            6,
            {"plan": "guided", "replan_every": 2},
            {"iterations": 12, "checkpoint_every": 1, **EVERYTHING},
            {"begun": 4, "saving": 0, "resumed": 2, "latest": 1},
        ),
    ],
    ids=["25 kills", "a checkpoint that holds all that it can"],
)
def test_kills_change_no_byte(kills, variant, settings, least, planned, tmp_path):
    story = ends_as_if_untouched(victim(planned, tmp_path / "run", variant, settings), kills)
    print(story)  # noqa: T201  (shown by pytest -rP)
    assert story.died["training"] + story.died["saving"] >= least["begun"], story
    assert story.died["saving"] >= least["saving"], story
    assert len(story.resumed) >= least["resumed"], story
    assert max(story.resumed) >= least["latest"], story
