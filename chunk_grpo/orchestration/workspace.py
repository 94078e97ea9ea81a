"""A run's own workspace: a clone of the repository at one commit; the checkout of the user is only read.

HOME/runs has the clones, HOME/state what a later run of this machine goes on from: checkpoints, a judge's answers.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dvc.config import Config
from dvc.repo import Repo
from dvc.utils.serialize import dump_yaml, load_yaml, parse_yaml
from pydantic import BaseModel, ConfigDict

from chunk_grpo.artifacts.publishing import sizes_below
from chunk_grpo.artifacts.run_record import RECORD, published_text, read_record
from chunk_grpo.artifacts.storage import join
from chunk_grpo.config import Overrides, parse_params, read_raw_params, with_overrides
from chunk_grpo.orchestration.clones import clone_in_use
from chunk_grpo.orchestration.commands import Commands, Log
from chunk_grpo.orchestration.pipeline import Pipeline
from chunk_grpo.orchestration.presets import composed, edits, preset_names
from chunk_grpo.orchestration.run_cache import forget_unfinished

KEPT_CLONES = 10
OF_THE_DAY = ("scorers", "executors", "pools", "report")
"""Sections of params.yaml that a later evaluation of published models takes from the preset as it is now."""

_STATE = (".ckpt", ".answers", ".inputs")


class TrainedModels(BaseModel):
    """The models of a published run: what makes a workspace that evaluates them.

    Attributes:
        commit: Whose code trained them.
        params: Text of its params.yaml.
        lock: Text of its dvc.lock, by which DVC finds the models in its cache or remote.
    """

    commit: str
    params: str
    lock: str

    @classmethod
    def published(cls, folder: str) -> TrainedModels | None:
        """Those of the newest run that was published at a folder or URL; None when none was.

        Raises:
            DataError: Its publication goes on, or was cut short.
            TransientError: The object store does not answer.
        """
        if RECORD not in sizes_below(folder):
            return None
        record = read_record(join(folder, RECORD))
        params, lock = (published_text(folder, record, name) for name in ("params.yaml", "dvc.lock"))
        return cls(commit=record.run.commit, params=params, lock=lock)


class RunSpec(BaseModel):
    """All that makes a workspace, on any machine.

    Attributes:
        commit: Of the code.
        preset: Of conf/preset/; None: params.yaml as it is at the commit.
        overrides: Of its parameters.
        variants: Only these; None for all.
        models: Of a finished run: they are kept, and so are its parameters but for those in OF_THE_DAY.
        inputs: What the user's files held when the run began, by the path of each record; None: they are looked at.
    """

    model_config = ConfigDict(validate_default=True)  # no overrides are an instance too

    commit: str
    preset: str | None = None
    overrides: Overrides = {}
    variants: tuple[str, ...] | None = None
    models: TrainedModels | None = None
    inputs: dict[str, str] | None = None

    def as_parameter(self) -> dict[str, Any]:
        """As JSON values, what was set alone: the rest is for the presets of its commit to say."""
        return self.model_dump(mode="json", exclude_unset=True)

    def digest(self) -> str:
        """Another one for a specification in which anything else is set."""
        return hashlib.sha256(json.dumps(self.as_parameter(), sort_keys=True).encode()).hexdigest()


@dataclass
class Workspace:
    """Where a run works.

    Attributes:
        root: Of the clone.
        spec: What it was made from, and another one like it is made from: with its inputs.
        preset: Name of its parameters: `composed_from` of params.yaml.
        commands: That the run has running.
        remote: Whether there is a DVC remote.
        is_preset: Whether its parameters are those of the preset of that name, without a change, or of a name that is
            no preset's.
        turn: Whose turn it is: DVC refuses to work twice in one workspace.
        pushed: The dvc.lock whose results were pushed last.
    """

    root: Path
    spec: RunSpec
    preset: str
    commands: Commands
    remote: bool
    is_preset: bool
    turn: threading.Lock = field(default_factory=threading.Lock)
    pushed: bytes = b""

    @property
    def pipeline(self) -> Pipeline:
        """Its stages."""
        return Pipeline(self.root, self.commands)

    def push(self, log: Log) -> None:
        """Push outputs and run cache unless nothing has changed: DVC copies the machine's whole run cache each time.

        Raises:
            RemoteError: As `Pipeline.push`.
        """
        lock = self.root / "dvc.lock"
        state = lock.read_bytes() if lock.exists() else b""
        if state != self.pushed:
            self.pipeline.push(log)
            self.pushed = state


@contextmanager
def make_workspace(
    checkout: Path, home: Path, name: str, spec: RunSpec, commands: Commands, log: Log
) -> Iterator[Workspace]:
    """Make a workspace for a run, and keep others from removing it meanwhile.

    Args:
        checkout: Whose commits, DVC cache and DVC settings it has.
        home: Of all workspaces of this machine.
        name: Of the new clone.
        spec: What to make.
        commands: Of the run.
        log: Told what is going on.

    Raises:
        RuntimeError: There is no such commit; with git's message.
        ConfigError: There is no such preset, or preset and overrides break a rule.
        StageFailed: The user's files cannot be read.
        RemoteError: The models to keep are nowhere.
    """
    root = home / "runs" / name.replace("@", "-")  # DVC reads what follows an @ in a path as a stage
    with clone_in_use(checkout, spec.commit, root, KEPT_CLONES):
        share_cache(checkout, root)
        for kept in _STATE:
            (home / "state" / kept).mkdir(parents=True, exist_ok=True)
            (root / kept).symlink_to(home / "state" / kept, target_is_directory=True)
        params, pipeline = parameters(root, spec.preset, log), Pipeline(root, commands)
        preset = str(params["composed_from"])
        if spec.models is not None:
            trained = parse_yaml(spec.models.params, "params.yaml of the published run")
            params = trained | {name: params[name] for name in OF_THE_DAY}
        changed = with_overrides(params, spec.overrides, spec.variants, f"preset {preset}, changed")
        is_preset = changed == params and (spec.preset is not None or bears_its_own_name(root, params))
        write_params(root, changed)
        inputs = pipeline.record_inputs(log, spec.inputs)
        if spec.models is not None:
            pipeline.keep_models(spec.models.lock, log)
        log(f"Commit {spec.commit[:12]} in {root}")
        whole = spec.model_copy(update={"inputs": inputs})
        yield Workspace(root, whole, preset, commands, pipeline.has_remote(), is_preset)


def share_cache(source: Path, clone: Path) -> None:
    """Let a clone use its source's DVC cache and local settings (the endpoint of a remote, for example)."""
    with Repo(str(source)) as repo:
        local = repo.config.load_one("local")
        objects = Path(repo.cache.local.path)
    forget_unfinished(objects.parents[1] / "runs")
    settings = Config(str(clone / ".dvc"))
    with settings.edit("local") as config:
        config.update(local)
        for remote in {**settings["remote"], **config["remote"]}:
            # Otherwise DVC takes whatever arrives for a result, even half an object.
            config["remote"].setdefault(remote, {})["verify"] = True
        config["cache"]["dir"] = str(objects.parents[1])  # DVC itself adds files/md5
        # A clone holds results and models only to read: no copies of them where the file system can share.
        config["cache"]["type"] = ["reflink", "hardlink", "copy"]
        config["core"]["autostage"] = True  # otherwise DVC tells the log to `git add` after every stage


def parameters(root: Path, preset: str | None, log: Log) -> dict[str, Any]:
    """The parameters of a run before its overrides: those of a preset, or of params.yaml as it was committed.

    Args:
        root: Of the clone.
        preset: None: params.yaml.
        log: Told what of the committed params.yaml the preset replaces.

    Raises:
        ConfigError: There is no such preset, or params.yaml breaks a rule.
    """
    committed = dict(read_raw_params(root / "params.yaml"))
    if preset is None:
        parse_params(committed, "params.yaml of the commit")
        return committed
    if committed.get("composed_from") == preset and (unused := edits(root, committed)):
        log(f"Not part of this run, since it was given preset {preset}: edits of params.yaml in the commit")
        for edit in unused:
            log(f"  {edit}")
    return composed(root, preset)


def bears_its_own_name(root: Path, params: Mapping[str, Any]) -> bool:
    """Whether parameters equal the preset whose name they bear, or bear a name that is no preset's."""
    return params["composed_from"] not in preset_names(root) or not edits(root, params)


def read_yaml(file: Path) -> dict[str, Any]:
    """A YAML file as DVC reads it."""
    return dict(load_yaml(str(file)))


def write_params(workspace: Path, params: Mapping[str, Any]) -> None:
    """Write params.yaml."""
    dump_yaml(str(workspace / "params.yaml"), params)
