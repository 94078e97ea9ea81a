"""What `chunk-grpo accept` tries: a small copy of the parameters, in a clone with a DVC cache of its own."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TextIO

from chunk_grpo.artifacts import read_table
from chunk_grpo.artifacts.kept import add_files
from chunk_grpo.artifacts.layout import Layout
from chunk_grpo.artifacts.manifest import GRAPHS, read_manifest
from chunk_grpo.config import Params, parse_params
from chunk_grpo.environment import PROCESSES
from chunk_grpo.errors import ConfigError
from chunk_grpo.git import git, resolved
from chunk_grpo.gpus import DriverCard, driver_cards, visible_gpus
from chunk_grpo.orchestration.clones import make_clone
from chunk_grpo.orchestration.commands import Commands
from chunk_grpo.orchestration.dvc_state import keep_own_state
from chunk_grpo.orchestration.pipeline import Pipeline
from chunk_grpo.orchestration.workspace import write_params
from chunk_grpo.planning.machines import GPUS, USABLE_MEMORY, Machine, machine
from chunk_grpo.planning.plan import Plan, make_plan
from chunk_grpo.stopping import stop_seconds
from chunk_grpo.training.journal import FILE, Record, read_journal
from chunk_grpo.training.schedule import starts_of_update

Outcome = Literal["pass", "fail", "not checked"]


@dataclass(frozen=True)
class Found:
    """What a step found."""

    outcome: Outcome
    said: str
    """What was seen; of a failure also what to do; of what was not checked the reason."""
    numbers: Mapping[str, Any] = field(default_factory=dict)


WORKSPACE = "workspace"
"""Name of the workspace of the small copy, which each call makes anew."""

ITERATIONS = 3
"""Iterations of the training: the last one begins with weights of several updates."""


def visible_cards() -> list[DriverCard]:
    """Cards of the driver that CUDA_VISIBLE_DEVICES leaves: torch would take memory of a card to tell."""
    return driver_cards()[: len(visible_gpus())]


def kind_of(card: DriverCard) -> str | None:
    """Name in `GPUS`, of those with the card's name the nearest in memory; None: the plan does not know it."""
    name = "".join(filter(str.isalnum, card.name.upper()))
    alike = [kind for kind in GPUS if kind.partition("-")[0] in name]
    gib = card.gib or 0.0
    return min(alike, key=lambda kind: abs(GPUS[kind].memory_gb * USABLE_MEMORY - gib), default=None)


def machine_of(cards: list[DriverCard], gpu: str | None, tflops: float | None) -> Machine:
    """The machine of a plan: these cards; an H100 where there is none or the plan does not know it."""
    kind = gpu or (kind_of(cards[0]) if cards else None) or "H100"
    memory = cards[0].gib / USABLE_MEMORY if cards and cards[0].gib else None
    return machine(kind, len(cards) or 1, stop_seconds=stop_seconds(), memory_gb=memory, tflops=tflops)


@dataclass
class Trial:
    """What is tried, and where."""

    root: Path
    """The checkout."""
    out: Path
    """Folder of the workspace."""
    params: Params
    """The parameters as they are."""
    full: Mapping[str, Any]
    """The same, as read."""
    raw: Mapping[str, Any]
    """Their small copy, which runs."""
    cards: list[DriverCard]
    machine: Machine
    """What the plan assumes."""
    log: TextIO
    """Gets the lines of all stages."""
    references: Mapping[str, Path]
    """Folder of images by kind of scorer."""
    hpsv3_python: Path | None
    """Interpreter with HPSv3's package."""
    knows_rate: bool
    """Whether the plan's operations a second are those of the cards."""
    wants_curve: bool = False
    """Whether the whole training of the step `curve` was asked for."""
    folder: str = WORKSPACE
    """Name of the workspace in `out`."""

    @cached_property
    def commit(self) -> str:
        return resolved(self.root, "HEAD")

    @cached_property
    def small(self) -> Params:
        """The parameters that run."""
        return parse_params(self.raw, "the small copy")

    @cached_property
    def plan(self) -> Plan:
        """Of the parameters as they are."""
        return make_plan(self.params, self.machine)

    @cached_property
    def small_plan(self) -> Plan:
        """Of the parameters that run."""
        return make_plan(self.small, self.machine)

    @cached_property
    def pipeline(self) -> Pipeline:
        """The workspace, in which the stage `inputs` has run; it is made, unless it is of an earlier call and kept."""
        clone = self.out / self.folder
        if self.folder == WORKSPACE or not clone.exists():
            begun = clone.with_name(f"{clone.name}.begun")
            shutil.rmtree(begun, ignore_errors=True)  # of a call that was killed meanwhile
            make_clone(self.root, self.commit, begun)
            try:
                begun.rename(clone)
            except OSError as error:
                raise ConfigError(f"{clone}: must not exist, and cannot be replaced ({error}); choose --out") from error
        link_data(self.root, clone)
        keep_own_state(clone)
        write_params(clone, self.raw)
        made = Pipeline(clone, Commands())
        made.record_inputs(self.say)
        return made

    @property
    def at(self) -> Layout:
        """Paths in the workspace."""
        return Layout.below(str(self.out / self.folder))

    @property
    def variant(self) -> str:
        return next(iter(self.small.variants))

    @property
    def seed(self) -> int:
        return self.small.train.seeds[0]

    def say(self, line: str) -> None:
        """Write a line to the log."""
        self.log.write(f"{line}\n")

    def train(self, processes: int | None = None) -> None:
        """Run the training again, or go on with it; `processes` None: one for each GPU."""
        before = os.environ.get(PROCESSES)
        if processes is not None:
            os.environ[PROCESSES] = str(processes)
        try:
            self.pipeline.run(f"train@{self.variant}-{self.seed}", self.say, force=True)
        finally:
            os.environ.pop(PROCESSES, None)
            if before is not None:
                os.environ[PROCESSES] = before

    def journal(self) -> Record | None:
        return read_journal(Path(self.at.journal_folder(self.variant, self.seed), FILE))

    def policy(self) -> str:
        """Digest of the trained policy's files."""
        digest, folder = hashlib.sha256(), Path(self.at.transformer(self.variant, self.seed))
        add_files(digest, sorted(path for path in folder.rglob("*") if path.is_file()))
        return digest.hexdigest()

    def metrics(self, *, timed: bool = False) -> list[dict[str, float]]:
        """Metrics of the training by name, or its times, of each iteration from the first."""
        location = self.at.times if timed else self.at.metrics
        found = by_iteration(location(self.variant, self.seed))
        return [found[number] for number in range(1, ITERATIONS + 1)]

    def stages(self) -> list[dict[str, Any]]:
        """Seconds, memory and compiled graphs of each stage that has run, by its manifest; of the first process."""
        made = sorted(map(read_manifest, Path(self.at.runs).glob("*.json")), key=lambda run: run.started_at)
        names = ("stage", "seconds", "host MiB", "GPU MiB", "compiled graphs")
        rows = [
            (run.stage, run.seconds, run.peak_memory_mib, run.notes.get("peak_gpu_mib"), run.notes.get(GRAPHS, 0))
            for run in made
        ]
        return [dict(zip(names, row, strict=True)) for row in rows]


def by_iteration(table: str) -> dict[int, dict[str, float]]:
    """Values of a table of schema train_metrics, by iteration and name of the metric."""
    found: dict[int, dict[str, float]] = {}
    for row in read_table(table, "train_metrics").to_pylist():
        found.setdefault(row["iteration"], {})[row["metric"]] = row["value"]
    return found


def smaller(params: Params, processes: int) -> list[str]:
    """Overrides that keep sizes of passes, weights and scorers, and draw as few images as the preset allows."""
    train, prompts = params.train, params.prompts
    evaluated = min(prompts.eval_count, 4)
    values: dict[str, object] = {
        "train.iterations": ITERATIONS,
        "train.seeds": [train.seeds[0]],
        "train.prompts_per_iteration": _fewest_prompts(params, processes),
        "train.keep_state": "false",  # else a training would go on from the one before
        "train.heldout.num_prompts": min(train.heldout.num_prompts, 2),
        "profile.num_prompts": min(params.profile.num_prompts, 2),
        "profile.num_seeds": 1,
        "prompts.eval_count": evaluated,
        "prompts.wise_count": min(prompts.wise_count, 2),
        "report.grid_prompts": min(params.report.grid_prompts, evaluated),
        "trackers": [],
    }
    counts = {name: min(each.count or 2, 2) for name, each in prompts.benchmarks.items()}
    values |= {f"prompts.benchmarks.{name}.count": count for name, count in counts.items()}
    return [f"{key}={value}" for key, value in values.items()]


def _fewest_prompts(params: Params, processes: int) -> int:
    """The smallest number of prompts an iteration that all processes can share."""
    train, branching = params.train, next(iter(params.variants.values())).branching
    for count in range(train.updates_per_iteration, train.prompts_per_iteration, train.updates_per_iteration):
        own = train.model_copy(update={"prompts_per_iteration": count})
        if starts_of_update(own, branching) % processes == 0:
            return count
    return train.prompts_per_iteration


def link_data(root: Path, clone: Path) -> None:
    """Let the clone see files that git does not know: new ones, and all in data/, which may be ignored."""
    new = git(root, "ls-files", "--others", "--exclude-standard", "--directory").splitlines()
    data = git(root, "ls-files", "--others", "--directory", "--", "data").splitlines()
    for name in (each.rstrip("/") for each in dict.fromkeys(new + data)):
        if not (clone / name).exists():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            (clone / name).symlink_to(root / name)
