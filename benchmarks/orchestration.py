"""Overhead of Prefect and DVC over the bare stage commands: `python -m benchmarks.orchestration`.

Clones of this repository's commit, each with its own empty DVC cache, run one preset in turn: every stage's command
alone; `dvc repro`; a flow run with all stages in sequence on the flow's worker; and a flow run with work pools, where
training runs on the gpu pool in parallel with other stages, followed by a second one with everything cached. Every
second round uses the reverse order, to balance drifts of the machine's speed. The tables of all rounds so far are
printed after each round. No other work should run on the machine. Clones and caches go into a temporary folder.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from dvc.repo import Repo
from dvc.utils.hydra import compose_and_dump
from rich.console import Console

from benchmarks.sheets import Sheet, spread
from chunk_grpo.orchestration.commands import Commands
from chunk_grpo.orchestration.outcomes import StageOutcome
from chunk_grpo.orchestration.pipeline import Pipeline
from infra.local_prefect import LocalPrefect, free_port

ROOT = Path(__file__).resolve().parents[1]
POOLS = ("encode", "profile", "train", "generate", "score")


@dataclass(frozen=True)
class FlowTimes:
    """Seconds of a flow run: in total, and of each stage including DVC, from its task's state."""

    wall: float
    stages: Mapping[str, float]


@dataclass(frozen=True)
class Round:
    """Results of one round.

    Attributes:
        bare: Seconds of each stage's command alone.
        repro: Seconds of `dvc repro`.
        here: Times of the flow run with all stages on the flow's worker.
        pools: Times of the flow run with work pools.
        cached: Times of the same flow run with everything cached.
    """

    bare: Mapping[str, float]
    repro: float
    here: FlowTimes
    pools: FlowTimes
    cached: FlowTimes


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", default="smoke")
    parser.add_argument("--rounds", type=int, default=1, help="number of rounds (default: 1)")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error(f"--rounds: at least 1, got {arguments.rounds}")
    console = Console(width=120)
    rounds: list[Round] = []
    while len(rounds) < arguments.rounds:
        rounds.append(measure(arguments.preset, len(rounds)))
        # A round takes up to an hour: print results after each, in case a later one fails.
        console.print(summary(arguments.preset, rounds).for_terminal())
        console.print(by_stage(rounds).for_terminal())


def measure(preset: str, number: int) -> Round:
    """Measure one round; odd numbers use the reverse order."""
    say = Console(stderr=True, highlight=False).print
    with tempfile.TemporaryDirectory(prefix="orchestration-") as scratch:

        def bare() -> dict[str, float]:
            return run_bare(clone(Path(scratch, "bare"), preset))

        def repro() -> float:
            return timed(clone(Path(scratch, "repro"), preset), "-m", "dvc", "repro")

        def here() -> FlowTimes:
            with served(clone(Path(scratch, "here"), preset), Path(scratch, "home-here")) as prefect:
                return run_flow(prefect, preset, [f"pools.{name}=null" for name in POOLS])

        def pools() -> tuple[FlowTimes, FlowTimes]:
            with served(clone(Path(scratch, "pools"), preset), Path(scratch, "home-pools")) as prefect:
                on_pool = ["pools.train=gpu"]
                return run_flow(prefect, preset, on_pool), run_flow(prefect, preset, on_pool)

        ways: list[Callable[[], Any]] = [bare, repro, here, pools]
        found: dict[str, Any] = {}
        for way in reversed(ways) if number % 2 else ways:
            say(f"round {number + 1}: {way.__name__} ...")
            found[way.__name__] = way()
    cold, cached = found["pools"]
    return Round(found["bare"], found["repro"], found["here"], cold, cached)


def clone(folder: Path, preset: str) -> Path:
    """Clone this commit, with the parameters of a preset and an empty cache."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    config = str(folder / "conf")
    compose_and_dump(folder / "params.yaml", config, None, "config", str(folder), [f"preset={preset}"])
    return folder


def timed(folder: Path, *arguments: str) -> float:
    """Seconds of a Python command."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    environment = os.environ | {"PATH": path, "DVC_NO_ANALYTICS": "1"}
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL
    )
    return time.perf_counter() - start


def run_bare(folder: Path) -> dict[str, float]:
    """Seconds of each stage's command (`exec python -m ...`), in the order of the pipeline."""
    with Repo(str(folder)) as repo:
        commands = {stage.name: stage.cmd for stage in repo.index.stages}
    order = [stage.name for stage in Pipeline(folder, Commands()).stages()]
    return {name: timed(folder, *shlex.split(commands[name])[2:]) for name in order}


@contextmanager
def served(folder: Path, home: Path) -> Iterator[LocalPrefect]:
    """Run a server and workers for the clone."""
    with LocalPrefect(root=folder, home=home, port=free_port()).running() as prefect:
        yield prefect


def run_flow(prefect: LocalPrefect, preset: str, overrides: Sequence[str]) -> FlowTimes:
    """Run `chunk-grpo/full`; return the wall time and the stage times that the server has."""
    command = [sys.executable, "-m", "prefect", "deployment", "run", "chunk-grpo/full", "--watch"]
    start = time.perf_counter()
    subprocess.run(
        [*command, "--params", json.dumps({"preset": preset, "overrides": overrides})],
        cwd=prefect.root,
        env=prefect.environment,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    wall = time.perf_counter() - start
    runs = {"flow_runs": {"name": {"any_": [newest(prefect)]}}}
    tasks = httpx.post(f"{prefect.url}/api/task_runs/filter", json=runs).raise_for_status().json()
    names = {stage.name for stage in Pipeline(prefect.root, Commands()).stages()}
    texts = {task["name"]: task["state"]["message"] for task in tasks if task["name"] in names}
    return FlowTimes(wall, {name: StageOutcome.parse(name, text).seconds for name, text in texts.items()})


def newest(prefect: LocalPrefect) -> str:
    """Name of the newest run of the flow chunk-grpo."""
    begun = {"state": {"type": {"not_any_": ["SCHEDULED"]}}}
    body = {
        "flows": {"name": {"any_": ["chunk-grpo"]}},
        "flow_runs": begun,
        "sort": "START_TIME_DESC",
        "limit": 1,
    }
    (run,) = httpx.post(f"{prefect.url}/api/flow_runs/filter", json=body).raise_for_status().json()
    return str(run["name"])


def summary(preset: str, rounds: Sequence[Round]) -> Sheet:
    """Seconds of each way, and overhead per stage over the bare commands of the same round."""
    count = len(rounds[0].bare)
    bare = [sum(done.bare.values()) for done in rounds]
    rows = [("every stage bare, one after the other", spread(bare, 1), "")]
    for name, walls in (
        ("dvc repro", [done.repro for done in rounds]),
        ("flow run without pools, nothing cached", [done.here.wall for done in rounds]),
        ("flow run, nothing cached", [done.pools.wall for done in rounds]),
    ):
        over = [(wall - alone) / count for wall, alone in zip(walls, bare, strict=True)]
        rows.append((name, spread(walls, 1), spread(over)))
    rows.append(("flow run, everything cached", spread([done.cached.wall for done in rounds], 1), ""))
    title = f"Preset {preset}, {count} stages; median (lowest to highest) of {len(rounds)}"
    return Sheet(title, ("", "seconds", "over bare, a stage"), rows)


def by_stage(rounds: Sequence[Round]) -> Sheet:
    """Seconds of each stage: bare, and in the flow runs without and with pools, including DVC."""
    rows = [
        (
            name,
            spread([done.bare[name] for done in rounds], 1),
            spread([done.here.stages[name] for done in rounds], 1),
            spread([done.pools.stages[name] for done in rounds], 1),
        )
        for name in rounds[0].bare
    ]
    columns = ("stage", "bare, s", "in the flow without pools, s", "in the flow, s")
    return Sheet("Each stage, by DVC in a flow", columns, rows)


if __name__ == "__main__":
    main()
