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
from chunk_grpo.config import Overrides
from flows._dvc import Pipeline, compose_preset, share_cache

REPOSITORY = Path(os.environ.get("CHUNK_GRPO_REPOSITORY") or Path(__file__).resolve().parents[1])
"""Whose commits and whose DVC cache the runs of this worker use."""

KEPT_CLONES = 10
_STATE = (".ckpt", ".answers", "logs")


class RunSpec(BaseModel):
    """All that makes a workspace, on any machine.

    Attributes:
        commit: Of the code.
        preset: Of conf/preset/.
        overrides: Of its parameters.
        model: Where a finished run was published (a folder or a URL), whose trained models are kept.
    """

    commit: str
    preset: str
    overrides: Overrides = {}
    model: str | None = None


@dataclass(frozen=True)
class Workspace:
    """Where a flow run works.

    Attributes:
        root: Of the clone.
        spec: What it was made from.
        commands: That the flow run has running.
        remote: Whether there is a DVC remote.
        turn: Whose turn it is: DVC refuses to work twice in one workspace.
    """

    root: Path
    spec: RunSpec
    commands: Commands
    remote: bool
    turn: threading.Lock = field(default_factory=threading.Lock)

    @property
    def pipeline(self) -> Pipeline:
        """Its stages."""
        return Pipeline(self.root, self.commands)


@contextmanager
def workspace(spec: RunSpec, commands: Commands, log: Log) -> Iterator[Workspace]:
    """Make a workspace for this flow run, and keep others from removing it meanwhile.

    Raises:
        RuntimeError: There is no such commit; with git's message.
        ValueError: There is no such preset.
        ConfigError: Preset and overrides break a rule.
        RemoteError: The models to keep are nowhere.
    """
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
        compose_preset(root, spec.preset, spec.overrides)
        pipeline = Pipeline(root, commands)
        if spec.model is not None:
            with input_file(join(spec.model, "dvc.lock")) as lock:
                pipeline.keep_models(lock, log)
        log(f"Commit {spec.commit[:12]} in {root}")
        yield Workspace(root, spec, commands, pipeline.has_remote())
