"""Workspace of a run: a clone of the repository at one commit. The user's checkout is only read.

HOME/runs holds the clones, HOME/state the files that later runs on this machine reuse: checkpoints, a judge's answers,
the dvc.lock of the last run.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from chunk_grpo.artifacts.io import write_text
from chunk_grpo.artifacts.run_record import RECORD, published_text, read_record
from chunk_grpo.artifacts.storage import join, sizes_below
from chunk_grpo.config import parse_params, read_raw_params
from chunk_grpo.git import save_experiment
from chunk_grpo.orchestration.attempts import attempted, attempts_allowed
from chunk_grpo.orchestration.cache import cache_in_use, cache_of, forget_unfinished
from chunk_grpo.orchestration.clones import clone_in_use, locked
from chunk_grpo.orchestration.commands import Commands, Log
from chunk_grpo.orchestration.dvc_internals import Config, Repo, dump_yaml, parse_yaml
from chunk_grpo.orchestration.dvc_state import keep_own_state
from chunk_grpo.orchestration.outcomes import StageOutcome
from chunk_grpo.orchestration.pipeline import Pipeline, locked_stages
from chunk_grpo.orchestration.presets import Override, composed, edits, overridden, preset_names
from chunk_grpo.orchestration.stalls import watched

KEPT_CLONES = 10
LATEST_SECTIONS = ("scorers", "executors", "pools", "report")
"""Sections of params.yaml that a re-evaluation of published models takes from the current preset."""

_STATE = (".ckpt", ".answers", ".inputs")


class TrainedModels(BaseModel):
    """Models of a published run, as needed to make a workspace that evaluates them."""

    commit: str
    """Commit whose code trained the models."""
    params: str
    """Text of the run's params.yaml."""
    lock: str
    """Text of the run's dvc.lock, by which DVC finds the models in its cache or remote."""

    @classmethod
    def of_published_run(cls, folder: str) -> TrainedModels | None:
        """The models of the newest run published in a folder or at a URL; None if there is none.

        An unfinished publication is an error.
        """
        if RECORD not in sizes_below(folder):
            return None
        record = read_record(join(folder, RECORD))
        params, lock = (published_text(folder, record, name) for name in ("params.yaml", "dvc.lock"))
        return cls(commit=record.run.commit, params=params, lock=lock)


class RunSpec(BaseModel):
    """Specification of a workspace, valid on any machine."""

    model_config = ConfigDict(validate_default=True)  # makes the default of `overrides` an instance

    commit: str
    """Commit of the code."""
    preset: str | None = None
    """Name of a preset in conf/preset/; None: params.yaml of the commit."""
    overrides: tuple[Override, ...] = ()
    """Overrides of parameters, applied in this order."""
    variants: tuple[str, ...] | None = None
    """Names of the variants to keep; None for all."""
    models: TrainedModels | None = None
    """Finished run to re-evaluate. Its models and parameters are reused, except LATEST_SECTIONS."""
    inputs: dict[str, str] | None = None
    """Records of the user's files at the start of the run, by path; None: the files are read again."""

    def as_parameter(self) -> dict[str, Any]:
        """The fields that were set, as JSON values; unset ones are left to the presets of the commit."""
        return self.model_dump(mode="json", exclude_unset=True)

    def digest(self) -> str:
        """Digest of the fields that were set."""
        return hashlib.sha256(json.dumps(self.as_parameter(), sort_keys=True).encode()).hexdigest()


@dataclass
class Workspace:
    """Working directory of a run."""

    root: Path
    """Root of the clone."""
    spec: RunSpec
    """Specification of the workspace including `inputs`, so that an equal workspace can be made from it."""
    preset: str
    """Name of its parameters: `composed_from` of params.yaml."""
    label: str
    """Name among the workspaces of the run."""
    commands: Commands
    """Running commands of the run."""
    remote: bool
    """Whether there is a DVC remote."""
    is_preset: bool
    """Whether its parameters are unchanged from the preset of that name, or the name is not a preset's."""
    experiment: tuple[Path, str] | None = None
    """Repository and name of the experiment that names the run's results; None: nothing does."""
    turn: threading.Lock = field(default_factory=threading.Lock)
    """Lock of the workspace: DVC cannot run twice in one workspace."""
    paused: set[str] = field(default_factory=set)
    """Stages that wait before another attempt, and leave the workspace to others."""
    pushed: bytes = b""
    """Content of the dvc.lock whose results were pushed last."""

    @property
    def pipeline(self) -> Pipeline:
        """The DVC pipeline of the workspace."""
        return Pipeline(self.root, self.commands)

    @property
    def settings(self) -> str:
        """Source of the run's parameters, and what was changed in them, as text."""
        spec = self.spec
        source = f"Preset {self.preset}" if spec.preset else f"params.yaml of the commit, composed from {self.preset}"
        changes = f", with `{' '.join(spec.overrides)}`" if spec.overrides else ""
        return source + changes + (f", variants {', '.join(spec.variants)}" if spec.variants else "")

    @contextmanager
    def _pause(self, stage: str) -> Iterator[None]:
        """Count a stage as paused inside the context."""
        self.paused.add(stage)
        try:
            yield
        finally:
            self.paused.discard(stage)

    def restore(self, targets: Collection[str] | None, log: Log) -> dict[str, StageOutcome]:
        """Restore stages (None: all) and their dependencies from the DVC cache, and the missing ones from the remote.

        It begins with the results of the preset's last finished run on this machine.
        """
        # A re-evaluation has a dvc.lock of its own, with the models.
        earlier = {} if self.spec.models is not None else locked_stages(self._last_lock)
        with self.turn:
            done = self.pipeline.restore(targets, log, earlier=earlier)
            if self.remote and any(spec.name not in done for spec in self.pipeline.stages(targets)):
                pulled = self.pipeline.restore(targets, log, pull=True)
                done = {name: replace(outcome, outcome="pulled") for name, outcome in pulled.items()} | done
            self.save()
        return done

    def run(self, stage: str, log: Log, warn: Log, *, force: bool = False) -> StageOutcome:
        """Run a stage whose inputs are there, with further attempts after exit code 75.

        `log` receives its lines, `warn` what is said of a stalled training. Between attempts the workspace is left to
        other stages.
        """
        return attempted(
            lambda: self._run_once(stage, log, warn, force=force),
            attempts_allowed(),
            self.commands.stopping,
            log,
            lambda: self._pause(stage),
        )

    def _run_once(self, stage: str, log: Log, warn: Log, *, force: bool) -> StageOutcome:
        """Run a stage. If another run on this machine is computing the same, wait for its result."""
        with self.turn:
            lock = self.root / ".ckpt" / "locks" / self.pipeline.fingerprint(stage)
            with locked(lock, stopping=self.commands.stopping) as first:
                known = {} if first or force else self.pipeline.restore([stage], log)
                if stage in known:
                    return known[stage]
                with watched(stage, self.root, self.commands, warn):
                    outcome = self.pipeline.run(stage, log, force=force)
                self.save()
                return outcome

    def adopt(self, stage: str, outputs: Sequence[Mapping[str, Any]], log: Log) -> None:
        """Fetch the outputs that a stage made in another workspace, from the DVC cache or remote."""
        with self.turn:
            self.pipeline.adopt_outputs(stage, outputs, log)
            self.save()

    def remember(self) -> None:
        """Keep dvc.lock for the next run of the preset."""
        write_text((self.root / "dvc.lock").read_text(encoding="utf-8"), self._last_lock)

    def save(self) -> None:
        """Save the experiment, if it has a name and anything to name."""
        if self.experiment is not None and (self.root / "dvc.lock").exists():
            save_experiment(self.root, *self.experiment)

    @property
    def _last_lock(self) -> Path:
        """dvc.lock of the preset's last finished run on this machine."""
        name = re.sub(r"[^\w-]", "-", self.preset)
        return self.root.parents[1] / "state" / "locks" / f"{name}.lock"

    def push(self, log: Log) -> None:
        """Push outputs and run cache if dvc.lock has changed; RemoteError as `Pipeline.push`."""
        with self.turn:
            lock = self.root / "dvc.lock"
            state = lock.read_bytes() if lock.exists() else b""
            if state != self.pushed:
                self.pipeline.push(log)
                self.pushed = state


@contextmanager
def make_workspace(
    checkout: Path,
    home: Path,
    name: str,
    spec: RunSpec,
    commands: Commands,
    log: Log,
    label: str | None = None,
    experiment: str | None = None,
) -> Iterator[Workspace]:
    """Make a workspace for a run, and lock it inside the context so that other runs do not remove it.

    Its commits, DVC cache and DVC settings are the checkout's. `home` is the folder of all workspaces of this machine.
    `label` names the workspace within the run (None: by its parameters), `experiment` its results in `dvc exp show`
    (None: they are not listed, and `make gc` may remove them). RuntimeError, with git's message, if the
    commit is unknown; RemoteError if the models are neither in the cache nor in the remote.
    """
    root = home / "runs" / name.replace("@", "-")  # DVC parses text after an @ in a path as a stage name
    with clone_in_use(checkout, spec.commit, root, KEPT_CLONES), cache_in_use(cache_of(checkout)):
        share_cache(checkout, root)
        for kept in _STATE:
            (home / "state" / kept).mkdir(parents=True, exist_ok=True)
            (root / kept).symlink_to(home / "state" / kept, target_is_directory=True)
        params, pipeline = parameters(root, spec.preset, log), Pipeline(root, commands)
        preset = str(params["composed_from"])
        if spec.models is not None:
            trained = parse_yaml(spec.models.params, "params.yaml of the published run")
            params = trained | {name: params[name] for name in LATEST_SECTIONS}
        changed = overridden(params, spec.overrides, spec.variants, f"preset {preset}, changed")
        is_preset = changed == params and (spec.preset is not None or bears_its_own_name(root, params))
        write_params(root, changed)
        inputs = pipeline.record_inputs(log, spec.inputs)
        if spec.models is not None:
            pipeline.freeze_trainings(spec.models.lock, log)
        log(f"Commit {spec.commit[:12]} in {root}")
        whole = spec.model_copy(update={"inputs": inputs})
        remote, listed = pipeline.has_remote(), None if experiment is None else (checkout, experiment)
        yield Workspace(root, whole, preset, label or preset, commands, remote, is_preset, listed)


def share_cache(source: Path, clone: Path) -> None:
    """Let a clone use its source's DVC cache and local settings (the endpoint of a remote, for example)."""
    keep_own_state(source)
    with Repo(str(source)) as repo:
        local = repo.config.load_one("local")
        objects = Path(repo.cache.local.path)
    forget_unfinished(objects.parents[1] / "runs")
    settings = Config(str(clone / ".dvc"))
    with settings.edit("local") as config:
        config.update(local)
        for remote in {**settings["remote"], **config["remote"]}:
            # Otherwise DVC accepts truncated objects.
            config["remote"].setdefault(remote, {})["verify"] = True
        config["cache"]["dir"] = str(objects.parents[1])  # DVC itself adds files/md5
        # Results in a clone are only read: no copies where the file system can share blocks or inodes.
        config["cache"]["type"] = ["reflink", "hardlink", "copy"]
        config["core"]["autostage"] = True  # otherwise DVC logs a `git add` hint after every stage


def parameters(root: Path, preset: str | None, log: Log) -> dict[str, Any]:
    """The parameters of a preset; None: the committed params.yaml.

    `log` receives the edits of the committed params.yaml that the preset does not include.
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
    """Whether parameters equal the preset named by `composed_from`, or that name is not a preset's."""
    return params["composed_from"] not in preset_names(root) or not edits(root, params)


def write_params(workspace: Path, params: Mapping[str, Any]) -> None:
    """Write params.yaml."""
    dump_yaml(str(workspace / "params.yaml"), params)
