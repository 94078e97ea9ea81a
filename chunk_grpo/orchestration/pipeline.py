"""DVC's part of a run: read the DAG, restore cached stages, run one stage, push results.

The DAG is read through DVC's Python API. The rest runs DVC's command line in a subprocess: DVC's lock is held per
process, so that two threads of one process could run a stage twice at once.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chunk_grpo.errors import ConfigError
from chunk_grpo.guard import exec_with_parent_death_signal, supervised
from chunk_grpo.orchestration.commands import Commands, Log
from chunk_grpo.orchestration.dvc_internals import (
    PipelineStage,
    Repo,
    Stage,
    StageNotFound,
    dump_yaml,
    load_yaml,
    plan_repro,
    to_single_stage_lockfile,
)
from chunk_grpo.orchestration.outcomes import DvcLog, StageFailed, StageOutcome
from chunk_grpo.stopping import stop_seconds

STOP_MARGIN = 10.0
"""Seconds added to a stage's own stop timeout, so that the stage can report a timeout itself."""

_DVC = Path(__file__).with_name("dvc_process.py")


@dataclass(frozen=True)
class StageSpec:
    """One stage of dvc.yaml."""

    name: str
    """Name as in `dvc repro NAME`; `train@chunk-0` for a generated stage."""
    needs: tuple[str, ...]
    """Names of the stages whose outputs this one reads."""
    work_pool: str | None = None
    """`meta.work_pool` of dvc.yaml; None runs the stage where the flow runs."""
    flow: str = "stage"
    """`meta.flow`: flow that is deployed to that pool."""
    makes_model: bool = False
    """`meta.makes_model`: whether a later evaluation of the models keeps the stage's outputs."""


@dataclass(frozen=True)
class Pipeline:
    """A DVC workspace."""

    root: Path
    """Root of the repository."""
    commands: Commands
    """Running commands of its flow run."""

    def stages(self, targets: Collection[str] | None = None) -> list[StageSpec]:
        """The stages in the order of `dvc repro`: each after all stages that it needs.

        Only the targets, stages (`train@chunk-0`) or groups of stages (`train`), and what they need; None: all.
        """
        with Repo(str(self.root)) as repo:
            chosen = [None] if targets is None else targets
            wanted = [stage for target in chosen for stage in _collect(repo, target)]
            graph = repo.index.graph
            return [
                StageSpec(
                    name=_address(stage, repo.root_dir),
                    needs=tuple(sorted(_address(needed, repo.root_dir) for needed in graph.successors(stage))),
                    **(stage.meta or {}),
                )
                for stage in plan_repro(graph, wanted)
            ]

    def restore(
        self, targets: Collection[str] | None, log: Log, *, pull: bool = False, earlier: Mapping[str, Any] | None = None
    ) -> dict[str, StageOutcome]:
        """Restore stages and the stages that they need from the cache and, with `pull`, from the remote.

        No stage runs: DVC gets /bin/false as its shell. Returns the outcomes of the stages that are up to date now.
        Targets are stages or groups; None: all, which takes less time than to name all. RemoteError if cache or remote
        is unreadable.

        DVC reads and writes the whole dvc.lock after each stage that it restores from the run cache: 8 s of 11 s for 24
        stages. It leaves dvc.lock alone if a stage has its outputs. So the outputs of `earlier`, stages of another
        run's dvc.lock, whose inputs and parameters may have been others, are checked out first.
        """
        dvc_log = DvcLog(lambda line: log(line) if line.startswith(("Stage ", "Pulling ", "Verifying ")) else None)
        if targets is not None and not targets:
            return {}
        taken = self._take_over(earlier, targets) if earlier else []
        options = ["--keep-going", *(["--pull"] if pull else []), *(targets or [])]
        # Stages as targets of a checkout would take longer: 3.5 s for 24, not 1.1 s.
        checkout = ["checkout", "--force", "--allow-missing", "dvc.yaml", "+"] if taken else []
        code, found = self._recorded([*checkout, "repro", *options], dvc_log, SHELL="/bin/false")
        kinds = {each["outcome"] for each in found}
        if pull and "ran" in kinds and not dvc_log.troubles:
            dvc_log.troubles.extend(self._missing_bucket())
        if (pull and dvc_log.troubles) or (code != 0 and ("ran" not in kinds or "failed" in kinds)):
            raise dvc_log.error("dvc repro" + (" --pull" if pull else ""), code)
        done = {
            each["stage"]: StageOutcome(
                each["stage"], "restored" if each["stage"] in taken else each["outcome"], each["seconds"], each["size"]
            )
            for each in found
            if each["outcome"] in ("restored", "unchanged")
        }
        self._forget(set(taken) - done.keys())
        return done

    def run(self, name: str, log: Log, *, force: bool = False) -> StageOutcome:
        """Run one stage, with `force` even if DVC has its result; the stages that it needs must be up to date.

        `log` receives each line of output while it runs. StageFailed has its exit code and last lines.
        """
        dvc_log = DvcLog(log)
        options = ["--single-item", *(["--force"] if force else []), name]
        code, found = self._recorded(["repro", *options], dvc_log)
        if code != 0:
            raise StageFailed(name, (found and found[0]["code"]) or code, tuple(dvc_log.lines))
        (done,) = found
        return StageOutcome(name, done["outcome"], done["seconds"], done["size"])

    def run_due(self, targets: Sequence[str], log: Log) -> None:
        """Run what is due of these stages and of those that they need, of all if none is named: one call of DVC.

        As `run`; StageFailed names the first one that failed.
        """
        dvc_log = DvcLog(log)
        code, found = self._recorded(["repro", *targets], dvc_log)
        if code != 0:
            failed = next((each for each in found if each["code"]), None)
            name, code = ("dvc repro", code) if failed is None else (failed["stage"], failed["code"])
            raise StageFailed(name, code, tuple(dvc_log.lines))

    def has_remote(self) -> bool:
        """Whether a default DVC remote is configured."""
        with Repo(str(self.root)) as repo:
            return bool(repo.config["core"].get("remote"))

    def push(self, log: Log) -> None:
        """Push outputs and run cache to the default remote, for other machines: what is not there yet.

        After a RemoteError, objects already transferred stay in the remote.
        """
        self._remote(["push"], log)
        self._remote(["push-run-cache"], log, "push of the run cache")

    def record_inputs(self, log: Log, known: Mapping[str, str] | None = None) -> dict[str, str]:
        """Run the stages that always run, and remove them from the workspace's dvc.yaml.

        Their outputs are then plain files to the other stages: they do not change during the run, and restoring from
        the cache needs no stage to run first. Returns the text of each file by its path. `known`, returned in another
        workspace of the same run, is written instead of running the stages.
        """
        definition = load_yaml(str(self.root / "dvc.yaml"))
        always = [name for name, stage in definition["stages"].items() if stage.get("always_changed")]
        outputs: dict[str, str] = dict(known or {})
        for name in always:
            stage = definition["stages"].pop(name)
            if known is None:
                dvc_log = DvcLog(log)
                shell = exec_with_parent_death_signal(["/bin/sh", "-c", stage["cmd"]])
                if code := self.commands.run(shell, self.root, self._environment(), dvc_log.add):
                    raise StageFailed(name, code, tuple(dvc_log.lines))
                paths = [path for out in stage["outs"] for path in _files(self.root / out)]
                outputs |= {path.relative_to(self.root).as_posix(): path.read_text(encoding="utf-8") for path in paths}
        for path, text in (known or {}).items():
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            (self.root / path).write_text(text, encoding="utf-8")
        dump_yaml(str(self.root / "dvc.yaml"), definition)
        return outputs

    def freeze_trainings(self, lock: str, log: Log) -> None:
        """Restore the outputs of all stages with `makes_model` from the text of a dvc.lock, and freeze these stages.

        RemoteError if one is neither in the cache nor in the remote.
        """
        (self.root / "dvc.lock").write_text(lock, encoding="utf-8")
        names = [stage.name for stage in self.stages() if stage.makes_model]
        self._remote(["pull" if self.has_remote() else "checkout", *names], log)
        pipeline = load_yaml(str(self.root / "dvc.yaml"))
        for stage in pipeline["stages"].values():
            definition = stage.get("do", stage)
            if definition.get("meta", {}).get("makes_model"):
                definition["frozen"] = True
        dump_yaml(str(self.root / "dvc.yaml"), pipeline)

    def fingerprint(self, name: str) -> str:
        """Digest of a stage's computation: its command, its parameters and the content of its inputs."""
        return hashlib.sha256(json.dumps(self._task(name), sort_keys=True).encode()).hexdigest()[:16]

    def outputs(self, name: str) -> list[dict[str, Any]]:
        """Outputs of an up-to-date stage as listed in dvc.lock: path, hash, size."""
        return [dict(out) for out in self._locked()[name].get("outs", [])]

    def adopt_outputs(self, name: str, outputs: Sequence[Mapping[str, Any]], log: Log) -> None:
        """Fetch the outputs that a stage made in another workspace of the same specification.

        `outputs` is the result of the method `outputs` there. The stages that it needs must be up to date. RemoteError
        if one is neither in the cache nor in the remote.
        """
        entry = {**self._task(name), "outs": [dict(out) for out in outputs]}
        self._write_locked({**self._locked(), name: entry})
        self._remote(["pull" if self.has_remote() else "checkout", "--force", name], log)

    def sort_lock(self) -> None:
        """Sort dvc.lock in the order of the pipeline: parallel stages end in any order."""
        locked = self._locked()
        order = [stage.name for stage in self.stages() if stage.name in locked]
        if list(locked) != order:
            self._write_locked({name: locked[name] for name in order})

    def _task(self, name: str) -> dict[str, Any]:
        """Command, dependencies and parameters of a stage, in the form of a dvc.lock entry."""
        with Repo(str(self.root)) as repo:
            (stage,) = repo.stage.collect(f"{repo.root_dir}/dvc.yaml:{name}")
            stage.save_deps()
            content = to_single_stage_lockfile(stage)
        return {key: value for key, value in content.items() if key != "outs"}

    def _locked(self) -> dict[str, Any]:
        """The stages of dvc.lock."""
        return locked_stages(self.root / "dvc.lock")

    def _write_locked(self, stages: Mapping[str, Any]) -> None:
        dump_yaml(str(self.root / "dvc.lock"), {"schema": "2.0", "stages": dict(stages)})

    def _take_over(self, earlier: Mapping[str, Any], targets: Collection[str] | None) -> Collection[str]:
        """Take over the entries of stages from another dvc.lock; return their names."""
        wanted = earlier if targets is None else [spec.name for spec in self.stages(targets)]
        entries = {name: earlier[name] for name in wanted if name in earlier}
        if entries:
            self._write_locked(self._locked() | entries)
        return entries.keys()

    def _forget(self, names: Collection[str]) -> None:
        """Remove stages from dvc.lock, with the outputs of other inputs or parameters that they name."""
        if not names:
            return
        locked = self._locked()
        gone = {out["path"] for name in names for out in locked.pop(name).get("outs", [])}
        for path in gone - {out["path"] for stage in locked.values() for out in stage.get("outs", [])}:
            output = self.root / path
            shutil.rmtree(output) if output.is_dir() else output.unlink(missing_ok=True)
        self._write_locked(locked)

    def _remote(self, arguments: Sequence[str], log: Log, name: str | None = None) -> None:
        """Run a DVC command; an error if it fails, or its log has failed or damaged transfers."""
        dvc_log = DvcLog(log)
        code, _ = self._recorded(arguments, dvc_log)
        if code != 0 or dvc_log.troubles:
            raise dvc_log.error(name or f"dvc {arguments[0]}", code)

    def _missing_bucket(self) -> list[str]:
        """An error line if the remote's bucket is missing: `dvc repro --pull` treats it as an empty one."""
        with Repo(str(self.root)) as repo:
            remote = repo.cloud.get_remote()
            try:
                list(remote.fs.find(remote.fs.join(remote.path, "runs", "00")))
            except FileNotFoundError as error:
                return [f"{remote.fs.unstrip_protocol(remote.path)}: {error}"]
        return []

    def _recorded(self, arguments: Sequence[str], log: DvcLog, **variables: str) -> tuple[int, list[dict[str, Any]]]:
        """Run a DVC command; return its exit code and what became of the stages, as dvc_process.py records it."""
        with tempfile.TemporaryDirectory(prefix="dvc-") as folder:
            record = Path(folder, "stages.jsonl")
            command = supervised([str(_DVC), str(record), *arguments], stop_seconds() + STOP_MARGIN)
            code = self.commands.run(command, self.root, self._environment() | variables, log.add)
            lines = record.read_text(encoding="utf-8").splitlines() if record.exists() else []
            return code, [json.loads(line) for line in lines]

    def _environment(self) -> dict[str, str]:
        """Environment of a stage; its `python` is the interpreter of this process.

        PYTHONPATH is removed: Prefect adds the flows' folder to it, but a stage must import the code of its workspace.
        """
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        path = [str(Path(sys.executable).parent), environment.get("PATH", os.defpath)]
        return environment | {"PATH": os.pathsep.join(path), "PYTHONUNBUFFERED": "1", "DVC_NO_ANALYTICS": "1"}


def locked_stages(lock: Path) -> dict[str, Any]:
    """The stages of a dvc.lock, by name; none if the file is missing."""
    return dict(load_yaml(str(lock))["stages"]) if lock.exists() else {}


def _collect(repo: Repo, target: str | None) -> list[Stage]:
    """The stages of dvc.yaml that match a target, at least one; all if it is None."""
    pipeline = f"{repo.root_dir}/dvc.yaml"  # DVC resolves targets relative to the current folder
    try:
        return list(repo.stage.collect(pipeline if target is None else f"{pipeline}:{target}"))
    except StageNotFound as error:
        names = {_address(stage, repo.root_dir) for stage in _collect(repo, None)}
        known = ", ".join(sorted(names | {name.partition("@")[0] for name in names}))
        raise ConfigError(f"dvc.yaml has no stage and no group of stages {target!r}; it has {known}") from error


def _files(output: Path) -> list[Path]:
    """The file, or the files of the folder, sorted."""
    return sorted(path for path in output.rglob("*") if path.is_file()) if output.is_dir() else [output]


def _address(stage: Stage, root: str) -> str:
    """Address of a stage for `dvc repro` in the root: NAME, FOLDER/dvc.yaml:NAME or FILE.dvc."""
    file = Path(stage.path).relative_to(root).as_posix()
    if not isinstance(stage, PipelineStage):
        return file
    return str(stage.name) if file == "dvc.yaml" else f"{file}:{stage.name}"
