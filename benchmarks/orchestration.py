"""What Prefect and DVC cost over running the same stages bare: `python -m benchmarks.orchestration`.

Clones of this repository's commit, each with an empty DVC cache of its own, run one preset in turn: every stage's
command by itself, `dvc repro`, a flow run with all stages where the flow runs, one after the other as before, and a
flow run with training on the gpu pool beside other stages, which then runs again with all of it cached. Nothing else
should run on the machine. Clones and caches go into a temporary folder.
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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from dvc.repo import Repo
from dvc.utils.hydra import compose_and_dump
from rich.console import Console
from rich.table import Table

from chunk_grpo.orchestration.commands import Commands
from chunk_grpo.orchestration.outcomes import StageOutcome
from chunk_grpo.orchestration.pipeline import Pipeline
from infra.local_prefect import LocalPrefect, free_port

ROOT = Path(__file__).resolve().parents[1]
POOLS = ("encode", "profile", "train", "generate", "score")


@dataclass(frozen=True)
class FlowTimes:
    """Seconds of a flow run: in all, and of each stage with DVC's part, as its task says."""

    wall: float
    stages: Mapping[str, float]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", default="smoke")
    arguments = parser.parse_args()
    say = Console(stderr=True, highlight=False).print
    with tempfile.TemporaryDirectory(prefix="orchestration-") as scratch:
        say("1 of 5: every stage bare ...")
        bare = run_bare(clone(Path(scratch, "bare"), arguments.preset))
        say("2 of 5: dvc repro ...")
        repro = timed(clone(Path(scratch, "repro"), arguments.preset), "-m", "dvc", "repro")
        say("3 of 5: flow run without pools ...")
        with served(clone(Path(scratch, "here"), arguments.preset), Path(scratch, "home-here")) as prefect:
            here = run_flow(prefect, arguments.preset, pools=dict.fromkeys(POOLS))
        say("4 of 5: flow run ...")
        with served(clone(Path(scratch, "served"), arguments.preset), Path(scratch, "home")) as prefect:
            cold = run_flow(prefect, arguments.preset)
            say("5 of 5: flow run, everything cached ...")
            cached = run_flow(prefect, arguments.preset)
    show(arguments.preset, bare, repro, here, cold, cached)


def clone(folder: Path, preset: str) -> Path:
    """A clone of this commit with the parameters of a preset, and with an empty cache."""
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
    """Seconds of each stage's command, in the order of the pipeline."""
    with Repo(str(folder)) as repo:
        commands = {stage.name: stage.cmd for stage in repo.index.stages}
    order = [stage.name for stage in Pipeline(folder, Commands()).stages()]
    return {name: timed(folder, *shlex.split(commands[name])[1:]) for name in order}


@contextmanager
def served(folder: Path, home: Path) -> Iterator[LocalPrefect]:
    """The clone behind a server and workers."""
    with LocalPrefect(root=folder, home=home, port=free_port()).running() as prefect:
        yield prefect


def run_flow(prefect: LocalPrefect, preset: str, **overrides: object) -> FlowTimes:
    """Run `chunk-grpo/full`, and ask the server how long it took."""
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


def show(
    preset: str,
    bare: Mapping[str, float],
    repro: float,
    here: FlowTimes,
    cold: FlowTimes,
    cached: FlowTimes,
) -> None:
    """Print the tables."""
    total, count = sum(bare.values()), len(bare)
    table = Table(title=f"Preset {preset}, {count} stages")
    for heading in ("", "seconds", "over bare, a stage"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, wall in (
        ("every stage bare, one after the other", total),
        ("dvc repro", repro),
        ("flow run without pools, nothing cached", here.wall),
        ("flow run, nothing cached", cold.wall),
    ):
        table.add_row(name, f"{wall:.1f}", f"{(wall - total) / count:.2f}")
    table.add_row("flow run, everything cached", f"{cached.wall:.1f}", "")
    stages = Table("stage", "bare, s", "by DVC in the flow without pools, s", title="Each stage")
    for name, alone in bare.items():
        stages.add_row(name, f"{alone:.1f}", f"{here.stages[name]:.1f}")
    console = Console(width=100)
    console.print(table)
    console.print(stages)


if __name__ == "__main__":
    main()
