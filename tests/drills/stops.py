"""Kill or interrupt `dvc repro` of a real training at random times, and compare its final results byte by byte.

    python -m tests.drills.stops --seed 0 --count 30

Trainings with one and two processes alternate, and so do times after the start of DVC and of the training. SIGKILL is
sent COUNT times to DVC, the training, or one of two processes; SIGINT is sent COUNT times to the whole process group,
like Ctrl-C. Each time no process may survive, only reported losses are allowed, and the same command must then resume
and reach results byte-identical to an undisturbed training. It runs in a clone of this repository at its commit, with
its own DVC cache.
"""

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Literal

import psutil
from dvc.utils.hydra import compose_and_dump
from rich.console import Console

from chunk_grpo.environment import PROCESSES
from chunk_grpo.git import resolved
from chunk_grpo.orchestration.clones import make_clone
from chunk_grpo.training.copies import order_of
from chunk_grpo.training.journal import FILE, Record, read_journal
from infra.setup import ROOT
from tests.checkpoints import checkpoints, newest
from tests.drills.command import DrillError, drill_parser, run_drill, stage_environment
from tests.drills.training import STAGE, VARIANT, compare
from tests.drills.watch import lives, load
from tests.waiting import wait_for

ITERATIONS, CHECKPOINT_EVERY = 12, 4
OVERRIDES = [
    "preset=smoke",
    "train.prompts_per_iteration=4",  # divisible by two processes
    f"train.iterations={ITERATIONS}",
    f"train.checkpoint_every={CHECKPOINT_EVERY}",
]
_END_SECONDS = 30.0  # time for a checkpoint and the end of all processes, on a busy machine
_KEPT = re.compile(r"stopped after iteration (\d+) of \d+; kept in (\S+)\. Run")

Victim = Literal["dvc", "launcher", "process", "group"]


@dataclass
class Repository:
    """A clone in which DVC runs a training, in a number of processes."""

    root: Path
    processes: int = 1

    @property
    def folder(self) -> Path:
        """Folder with the outputs of the training."""
        return self.root / "artifacts" / "train" / VARIANT / "seed-0"

    def checkpoints(self) -> list[Path]:
        """Paths of the checkpoints, oldest first."""
        return checkpoints(self.root)

    def newest(self) -> int:
        """Iteration of the newest checkpoint; 0 if there is none."""
        return newest(self.root)

    def journal(self) -> Record | None:
        """Journal of the newest training process."""
        return read_journal(self.root / "logs" / VARIANT / "seed-0" / FILE)

    def trains_since(self, moment: float) -> bool:
        """Whether a process began to train after `moment`."""
        record = self.journal()
        return record is not None and record.started > moment

    def outputs(self) -> dict[str, bytes]:
        """Weights and metrics: content by path."""
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        return {str(path.relative_to(self.folder)): path.read_bytes() for path in files}

    @contextmanager
    def repro(self, *options: str) -> Iterator[subprocess.Popen[str]]:
        """Run `dvc repro` in its own session; kill what is left of the session at the end."""
        programs = Path(sys.executable).parent
        environment = stage_environment(programs, **{PROCESSES: str(self.processes)})
        with subprocess.Popen(
            [sys.executable, "-m", "dvc", "repro", *options, STAGE],
            cwd=self.root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                yield process
            finally:
                for left in session(process.pid):
                    with suppress(psutil.NoSuchProcess):
                        left.kill()

    def finish(self) -> float:
        """Train to the end; return the seconds it took."""
        start = time.monotonic()
        with self.repro("--single-item", "--force") as process:
            told, _ = process.communicate()
        if process.returncode != 0 or self.checkpoints():
            raise DrillError(f"dvc repro ended with {process.returncode}, {self.checkpoints()}:\n{told}")
        return time.monotonic() - start


@dataclass
class Story:
    """Statistics of the drill."""

    hits: dict[str, int] = field(default_factory=dict)
    resumed: list[int] = field(default_factory=list)
    kept: int = 0
    slowest: float = 0.0

    def __str__(self) -> str:
        return (
            f"hit {self.hits}; all ended within {self.slowest:.1f} s; {self.kept} reported their checkpoint; "
            f"resumed from iterations {sorted(self.resumed)}"
        )


def main() -> int:
    """Run the drill; return exit status 1 if it fails."""
    parser = drill_parser("stops", __doc__)
    parser.add_argument("--seed", type=int, default=0, help="random seed of the times and victims")
    parser.add_argument("--count", type=int, default=30, help="number of kills, and of interrupts")
    options = parser.parse_args()

    def run(folder: Path, console: Console) -> str:
        console.print(f"seed {options.seed}; {load()}")
        story = drill(folder / "repository", options.seed, options.count, console)
        return f"The same bytes after {2 * options.count} hits; {story}; {load()}"

    return run_drill(run)


def drill(root: Path, seed: int, count: int, console: Console) -> Story:
    """Prepare, then repeatedly send a signal and resume."""
    made = Repository(root)
    prepare(made)
    untouched: dict[int, Mapping[str, bytes]] = {}
    moments: dict[int, tuple[float, float]] = {}
    for processes in (1, 2):
        made.processes = processes
        seconds = made.finish()
        record = made.journal()
        assert record is not None and record.ended is not None
        moments[processes] = seconds, record.ended - record.started
        untouched[processes] = made.outputs()
        console.print(f"undisturbed, {processes} processes: {seconds:.1f} s, training {moments[processes][1]:.1f} s")
    story = Story()
    for number, (victim, random_) in enumerate(islice(hits(seed), 2 * count)):
        made.processes = 2 if victim == "process" else 1 + number // 2 % 2
        trains = number // 4 % 2 == 0
        delay = random_.uniform(0, moments[made.processes][trains])
        told = hit(made, victim, delay, random_, story, trains=trains)
        newest = made.newest()
        made.finish()
        record = made.journal()
        if record is None or record.heading.done != newest:
            raise DrillError(
                f"hit {number}: resumed from {record and record.heading.done}, newest checkpoint was {newest}"
            )
        story.resumed += [newest] if newest else []
        compare(dict(untouched[made.processes]), made.outputs())
        console.print(f"hit {number}, {made.processes} processes: {told}; resumed from {newest}")
    return story


def prepare(made: Repository) -> None:
    """Make the clone, and run the training and all stages before it once."""
    make_clone(ROOT, resolved(ROOT, "HEAD"), made.root)
    compose_and_dump(made.root / "params.yaml", str(made.root / "conf"), None, "config", str(made.root), OVERRIDES)
    with made.repro() as process:
        told, _ = process.communicate()
    if process.returncode != 0:
        raise DrillError(f"dvc repro ended with {process.returncode}:\n{told}")


def hits(seed: int) -> Iterator[tuple[Victim, random.Random]]:
    """Yield victims, kills and interrupts in turn."""
    random_ = random.Random(seed)
    victims: tuple[Victim, ...] = ("dvc", "launcher", "process")
    while True:
        yield random_.choice(victims), random_
        yield "group", random_


def hit(made: Repository, victim: Victim, delay: float, random_: random.Random, story: Story, *, trains: bool) -> str:
    """Start, wait, send the signal, and check the remains; return a description."""
    before, begun = made.newest(), time.time()
    with made.repro("--single-item", "--force") as process:
        if trains:
            wait_for(lambda: process.poll() is not None or made.trains_since(begun), 300, "the training")
        with suppress(subprocess.TimeoutExpired):
            process.wait(delay)
        number = signal.SIGINT if victim == "group" else signal.SIGKILL
        name = strike(process.pid, victim, random_)
        start = time.monotonic()
        wait_for(lambda: not session(process.pid), _END_SECONDS, f"the end of all after {number.name} to {name}")
        gone = time.monotonic() - start
        told = process.communicate()[0]
    story.hits[name] = story.hits.get(name, 0) + 1
    story.slowest = max(story.slowest, gone)
    if made.newest() < before:
        raise DrillError(f"checkpoint {before} was lost: {told}")
    if victim == "group":
        story.kept += check_interrupt(made, told, begun)
    since = "training for" if trains else "started for"
    return f"{number.name} to {name}, {since} {delay:.2f} s, all ended {gone:.1f} s later"


def strike(leader: int, victim: Victim, random_: random.Random) -> str:
    """Send the signal and return the name of the receiver; DVC if the training is not running."""
    if victim == "group":
        with suppress(ProcessLookupError):
            os.killpg(leader, signal.SIGINT)
        return "group"
    trainings = sorted(process.pid for process in session(leader) if is_training(process))
    chosen, name = leader, "dvc"
    if trainings and victim == "launcher":
        chosen, name = trainings[0], "launcher"
    elif len(trainings) > 1 and victim == "process":
        chosen, name = random_.choice(trainings[1:]), "process"
    with suppress(ProcessLookupError):
        os.kill(chosen, signal.SIGKILL)
    return name


def check_interrupt(made: Repository, told: str, begun: float) -> bool:
    """Whether an interrupted training reported its checkpoint; it must if it had begun to train."""
    stage = told.partition("Running stage")[2]
    if "Traceback" in stage:
        raise DrillError(f"a traceback:\n{told}")
    record = made.journal()
    trained = record is not None and record.started > begun and record.ended is None
    found = _KEPT.search(stage)
    if found is None:
        if trained:
            raise DrillError(f"a stopped training did not report its checkpoint:\n{told}")
        return False
    assert record is not None
    path = made.checkpoints()[-1].relative_to(made.root)
    if Path(found[2]) != path or int(found[1]) != order_of(path)[0]:
        raise DrillError(f"reported {found[0]!r}, but the newest checkpoint is {path}")
    if order_of(path)[0] < max(record.metrics):
        raise DrillError(f"iteration {max(record.metrics)} was done, kept is {path}")
    return True


def session(leader: int) -> list[psutil.Process]:
    """Live processes of a session."""
    found = []
    for process in psutil.process_iter():
        with suppress(ProcessLookupError, PermissionError):
            if os.getsid(process.pid) == leader and lives(process):
                found.append(process)
    return found


def is_training(process: psutil.Process) -> bool:
    """Whether a process is the stage's; DVC's command line has `train@`, not `stages.train`."""
    with suppress(psutil.NoSuchProcess):
        return "stages.train" in process.cmdline()
    return False


if __name__ == "__main__":
    sys.exit(main())
