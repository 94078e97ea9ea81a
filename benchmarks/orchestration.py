"""Overhead of Prefect and DVC over the bare stage commands: `python -m benchmarks.orchestration`.

Clones of this repository's commit, each with its own empty DVC cache, run one preset in turn: every stage's command
alone; `dvc repro`; a flow run with all stages in sequence on the flow's worker; and a flow run with work pools, where
training runs on the gpu pool in parallel with other stages, followed by a second one with everything cached. Every
second round uses the reverse order, to balance drifts of the machine's speed. The table of all rounds so far is
printed after each round. No other work should run on the machine. Clones and caches go into a temporary folder.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from dvc.repo import Repo
from rich.console import Console

from benchmarks.tables import parser_of, print_machine, print_table, spread
from chunk_grpo.orchestration.commands import Commands
from chunk_grpo.orchestration.dvc_state import keep_own_state
from chunk_grpo.orchestration.pipeline import Pipeline
from chunk_grpo.orchestration.presets import compose
from infra.local_prefect import LocalPrefect, free_port

ROOT = Path(__file__).resolve().parents[1]
POOLS = ("encode", "profile", "train", "generate", "score")
BARE = "every stage bare, one after the other"
REPRO = "dvc repro"
HERE = "flow run without pools, nothing cached"
ON_POOLS = "flow run, nothing cached"
CACHED = "flow run, everything cached"


def main(options: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--preset", default="smoke")
    parser.add_argument("--rounds", type=int, default=1, help="number of rounds (default: 1)")
    arguments = parser.parse_args(options)
    if arguments.rounds < 1:
        parser.error(f"--rounds: at least 1, got {arguments.rounds}")
    rounds: list[dict[str, float]] = []
    while len(rounds) < arguments.rounds:
        stages, seconds = measure(arguments.preset, len(rounds))
        rounds.append(seconds)
        # A round takes up to an hour: print results after each, in case a later one fails.
        title = f"Preset {arguments.preset}, {stages} stages; median (least to largest) of {len(rounds)}"
        print_table(title, ("", "seconds", "over bare, a stage"), summary(stages, rounds))
    print_machine()


def measure(preset: str, number: int) -> tuple[int, dict[str, float]]:
    """Number of stages, and seconds of each way in one round; odd numbers use the reverse order."""
    say = Console(stderr=True, highlight=False).print
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="orchestration-") as scratch:

        def bare(folder: Path) -> None:
            seconds[BARE] = sum(timed(folder, *command) for command in commands(folder))

        def repro(folder: Path) -> None:
            seconds[REPRO] = timed(folder, "-m", "dvc", "repro")

        def here(folder: Path) -> None:
            with served(folder) as prefect:
                seconds[HERE] = run_flow(prefect, preset, [f"pools.{name}=null" for name in POOLS])

        def pools(folder: Path) -> None:
            with served(folder) as prefect:
                for name in (ON_POOLS, CACHED):
                    seconds[name] = run_flow(prefect, preset, ["pools.train=gpu"])

        ways = [bare, repro, here, pools]
        for way in reversed(ways) if number % 2 else ways:
            say(f"round {number + 1}: {way.__name__} ...")
            way(clone(Path(scratch, way.__name__), preset))
        return len(commands(Path(scratch, "bare"))), seconds


def summary(stages: int, rounds: Sequence[Mapping[str, float]]) -> Iterator[tuple[str, str, str]]:
    """Rows of the table: seconds of each way, and overhead a stage over the bare commands of the same round."""
    for name in (BARE, REPRO, HERE, ON_POOLS, CACHED):
        over = [(seconds[name] - seconds[BARE]) / stages for seconds in rounds]
        compared = name in (REPRO, HERE, ON_POOLS)
        yield name, spread([seconds[name] for seconds in rounds], 1), spread(over) if compared else ""


def clone(folder: Path, preset: str) -> Path:
    """Clone this commit, with the parameters of a preset and an empty cache."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    keep_own_state(folder)
    compose(folder, preset, folder / "params.yaml")
    return folder


def timed(folder: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> float:
    """Seconds of a Python command."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    variables = os.environ | {"PATH": path, "DVC_NO_ANALYTICS": "1"} if environment is None else environment
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=variables, check=True, stdout=subprocess.DEVNULL
    )
    return time.perf_counter() - start


def commands(folder: Path) -> list[list[str]]:
    """Arguments of each stage's command (`exec python -m ...`) after `python`, in the order of the pipeline."""
    with Repo(str(folder)) as repo:
        written = {stage.name: stage.cmd for stage in repo.index.stages}
    return [shlex.split(written[stage.name])[2:] for stage in Pipeline(folder, Commands()).stages()]


@contextmanager
def served(folder: Path) -> Iterator[LocalPrefect]:
    """Run a server and workers for the clone."""
    home = folder.with_name(f"{folder.name}-home")
    with LocalPrefect(root=folder, home=home, port=free_port()).running() as prefect:
        yield prefect


def run_flow(prefect: LocalPrefect, preset: str, overrides: Sequence[str]) -> float:
    """Seconds of a run of `chunk-grpo/full`."""
    parameters = json.dumps({"preset": preset, "overrides": overrides})
    command = ["deployment", "run", "chunk-grpo/full", "--watch", "--params", parameters]
    return timed(prefect.root, "-m", "prefect", *command, environment=prefect.environment)


if __name__ == "__main__":
    main()
