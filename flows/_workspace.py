"""One flow run's own workspace: a clone of the repository at one commit; the user's checkout is only read.

PREFECT_HOME/runs has the clones, PREFECT_HOME/state what a later run goes on from: checkpoints, a judge's answers.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from prefect.runtime import flow_run
from prefect.settings import PREFECT_HOME
from pydantic import BaseModel

from chunk_grpo.artifacts.storage import input_file, join
from chunk_grpo.clones import IN_USE, locked, make_clone, prune_clones
from chunk_grpo.commands import Commands, Log
from chunk_grpo.config import Overrides, with_overrides
from chunk_grpo.guard import end_with
from flows._dvc import Pipeline, compose_preset, read_yaml, share_cache, write_params

REPOSITORY = Path(os.environ.get("CHUNK_GRPO_REPOSITORY") or Path(__file__).resolve().parents[1])
"""Whose commits and whose DVC cache the runs of this worker use."""

KEPT_CLONES = 10
OF_THE_DAY = ("scorers", "executors", "pools", "report")
"""Sections of params.yaml that a later evaluation of published models takes from the preset as it is now."""

_STATE = (".ckpt", ".answers")


class RunSpec(BaseModel):
    """All that makes a workspace, on any machine.

    Attributes:
        commit: Of the code.
        preset: Of conf/preset/.
        overrides: Of its parameters.
        variants: Only these; None for all.
        model: Where a finished run was published (a folder or a URL), whose trained models are kept, and whose
            parameters but for those in OF_THE_DAY.
    """

    commit: str
    preset: str
    overrides: Overrides = {}
    variants: tuple[str, ...] | None = None
    model: str | None = None


@dataclass(frozen=True)
class Workspace:
    """Where a flow run works.

    Attributes:
        root: Of the clone.
        spec: What it was made from.
        commands: That the flow run has running.
        remote: Whether there is a DVC remote.
        is_preset: Whether its parameters are those of the preset, without a change.
        turn: Whose turn it is: DVC refuses to work twice in one workspace.
    """

    root: Path
    spec: RunSpec
    commands: Commands
    remote: bool
    is_preset: bool
    turn: threading.Lock = field(default_factory=threading.Lock)

    @property
    def pipeline(self) -> Pipeline:
        """Its stages."""
        return Pipeline(self.root, self.commands)


def published() -> str:
    """Folder or URL below which finished runs are published, PRESET/..."""
    return os.environ.get("CHUNK_GRPO_PUBLISH") or str(Path(PREFECT_HOME.value()).resolve() / "published")


@contextmanager
def workspace(spec: RunSpec, commands: Commands, log: Log) -> Iterator[Workspace]:
    """Make a workspace for this flow run, and keep others from removing it meanwhile.

    Raises:
        RuntimeError: There is no such commit; with git's message.
        ValueError: There is no such preset.
        ConfigError: Preset and overrides break a rule.
        RemoteError: The models to keep are nowhere.
    """
    if worker := os.environ.get("CHUNK_GRPO_WORKER_PID"):
        end_with(int(worker))  # a run without its worker would hold the GPU, and nobody could cancel it
    home = Path(PREFECT_HOME.value()).resolve()
    name = f"{flow_run.name}-{spec.preset}-{flow_run.id}-{flow_run.run_count}"
    root = home / "runs" / name.replace("@", "-")  # DVC reads what follows an @ in a path as a stage
    make_clone(REPOSITORY, spec.commit, root)
    share_cache(REPOSITORY, root)
    for kept in _STATE:
        (home / "state" / kept).mkdir(parents=True, exist_ok=True)
        (root / kept).symlink_to(home / "state" / kept, target_is_directory=True)
    with locked(root / IN_USE):
        prune_clones(root.parent, KEPT_CLONES)
        params, pipeline = compose_preset(root, spec.preset), Pipeline(root, commands)
        if spec.model is not None:
            with input_file(join(spec.model, "params.yaml")) as file:
                params = read_yaml(file) | {name: params[name] for name in OF_THE_DAY}
        changed = with_overrides(params, spec.overrides, spec.variants, f"preset {spec.preset}, changed")
        write_params(root, changed)
        if spec.model is not None:
            with input_file(join(spec.model, "dvc.lock")) as lock:
                pipeline.keep_models(lock, log)
        log(f"Commit {spec.commit[:12]} in {root}")
        yield Workspace(root, spec, commands, pipeline.has_remote(), is_preset=changed == params)
