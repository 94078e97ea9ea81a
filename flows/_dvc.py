"""The only file that calls DVC: read the DAG, run one stage of it, push what it made.

Reading goes through its Python API. Running goes through `python -m dvc repro --single-item` in a process of
its own: the lock of DVC is held per process, so that two threads could run one stage twice at once.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

from dvc.config import Config
from dvc.repo import Repo
from dvc.repo.reproduce import plan_repro
from dvc.stage import PipelineStage, Stage
from dvc.utils.hydra import compose_and_dump
from hydra.errors import HydraException

from flows._process import Log, run_logged

Outcome = Literal["ran", "restored", "pulled", "unchanged"]

MARKER_VARIABLE = "STAGE_RUN_MARKER"
"""Every stage touches the file that this variable names as its first act: proof that it really ran."""

_TAIL_LINES = 20
_EXIT_CODES = {2: "bad configuration", 3: "bad input", 75: "worth trying again"}


@dataclass(frozen=True)
class StageSpec:
    """One stage as dvc.yaml has it.

    Attributes:
        name: as in `dvc repro NAME`; `train@chunk` for a generated stage.
        work_pool: `meta.work_pool` of dvc.yaml; None runs where the flow runs.
        needs: the stages whose outputs this one reads.
    """

    name: str
    work_pool: str | None
    needs: tuple[str, ...]


@dataclass(frozen=True)
class StageOutcome:
    """What became of one stage.

    Attributes:
        stage: its name.
        outcome: `ran` (the command was executed), `restored` (outputs taken from the run cache), `pulled`
            (outputs fetched from the remote), `unchanged` (outputs already in the workspace).
        seconds: wall time, DVC's own part included.
    """

    stage: str
    outcome: Outcome
    seconds: float

    def __str__(self) -> str:
        return f"{self.outcome} in {self.seconds:.1f} s"

    @classmethod
    def parse(cls, stage: str, text: str) -> StageOutcome:
        """The inverse of `str()`: how an outcome gets from one flow run to another without stored results.

        Raises:
            ValueError: `text` is not the text of an outcome.
        """
        match = re.fullmatch(rf"({'|'.join(get_args(Outcome))}) in (\d+\.\d) s", text)
        if match is None:
            raise ValueError(f"stage {stage}: expected an outcome such as 'ran in 1.0 s', got {text!r}")
        return cls(stage, cast("Outcome", match[1]), float(match[2]))


class StageFailed(Exception):  # noqa: N818  (the contract between flows and stages names it so)
    """A stage ended with an error.

    Attributes:
        stage: its name.
        exit_code: what its command exited with, negative for a signal; DVC's own code when none was run.
        last_lines: the end of its output.
    """

    def __init__(self, stage: str, exit_code: int, last_lines: Iterable[str]) -> None:
        self.stage, self.exit_code, self.last_lines = stage, exit_code, tuple(last_lines)
        super().__init__("\n".join([f"stage {stage} {_exit_text(exit_code)}", *self.last_lines]))


class OutcomeUnclearError(RuntimeError):
    """DVC's log and the marker file disagree on whether a stage ran: its outputs can not be trusted."""


def stage_order(workspace: Path, targets: Collection[str] | None = None) -> list[StageSpec]:
    """The stages of a DVC workspace in the order of `dvc repro`: each after all that it needs.

    Args:
        workspace: root of the DVC repository.
        targets: stop after these stages (a name such as `train@chunk`, or a group such as `train`), with only
            what they need; None for all.

    Raises:
        dvc.exceptions.DvcException: dvc.yaml is invalid, or a target is not in it.
    """
    with Repo(str(workspace)) as repo:
        # DVC reads a target relative to the current folder, which here is not the workspace.
        pipeline = f"{repo.root_dir}/dvc.yaml"
        collected = [pipeline] if targets is None else [f"{pipeline}:{target}" for target in targets]
        wanted = [stage for target in collected for stage in repo.stage.collect(target)]
        graph = repo.index.graph
        return [
            StageSpec(
                name=_address(stage, repo.root_dir),
                work_pool=(stage.meta or {}).get("work_pool"),
                needs=tuple(sorted(_address(needed, repo.root_dir) for needed in graph.successors(stage))),
            )
            for stage in plan_repro(graph, wanted)
        ]


def run_stage(name: str, workspace: Path, log: Log, *, force: bool = False) -> StageOutcome:
    """Bring one stage up to date; what it needs must be up to date already.

    Args:
        name: the stage.
        workspace: root of the DVC repository.
        log: receives each line of output while the stage runs.
        force: run it even when DVC knows the result.

    Raises:
        StageFailed: with the command's exit code and last lines.
        OutcomeUnclearError: DVC says that it ran and the stage does not, or the other way round.
    """
    options = ["--pull"] if has_remote(workspace) else []
    options += ["--force"] if force else []
    outcome: Outcome | None = None
    tail: deque[str] = deque(maxlen=_TAIL_LINES)

    def on_line(line: str) -> None:
        nonlocal outcome
        outcome = _outcome_of_line(line, name) or outcome
        tail.append(line)
        log(line)

    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="stage-run-") as folder:
        marker = Path(folder) / "marker"
        environment = _environment() | {MARKER_VARIABLE: str(marker)}
        command = _dvc("repro", "--single-item", *options, name)
        code = run_logged(command, workspace, environment, on_line)
        touched = marker.exists()
    if code != 0:
        raise StageFailed(name, _exit_code(tail, code), tail)
    if outcome is None or (outcome == "ran") != touched:
        raise OutcomeUnclearError(
            f"stage {name}: DVC's log says {outcome or 'nothing'}, but the stage "
            f"{'touched' if touched else 'did not touch'} ${MARKER_VARIABLE}, which is to be its first act"
        )
    return StageOutcome(name, outcome, time.monotonic() - start)


def has_remote(workspace: Path) -> bool:
    """Whether the workspace has a default DVC remote, to pull from and to push to."""
    with Repo(str(workspace)) as repo:
        return bool(repo.config["core"].get("remote"))


def push_run_cache(workspace: Path, log: Log) -> None:
    """Push outputs and the run cache to the default remote, so that another machine recomputes nothing.

    Raises:
        RuntimeError: the push failed.
    """
    code = run_logged(_dvc("push", "--run-cache"), workspace, _environment(), log)
    if code != 0:
        raise RuntimeError(f"dvc push --run-cache exited with {code}: see the log above")


def share_cache(source: Path, clone: Path) -> None:
    """Let a clone use its source's DVC cache and local settings (the endpoint of a remote, for example)."""
    with Repo(str(source)) as repo:
        local = repo.config.load_one("local")
        objects = Path(repo.cache.local.path)
    with Config(str(clone / ".dvc")).edit("local") as config:
        config.update(local)
        config["cache"]["dir"] = str(objects.parents[1])  # DVC itself adds files/md5
        config["core"]["autostage"] = True  # otherwise DVC tells the log to `git add` after every stage


def compose_preset(workspace: Path, preset: str, overrides: Sequence[str]) -> None:
    """Write params.yaml from conf/: a preset and changes to it, as `dvc exp run -S` does.

    Args:
        workspace: root of the DVC repository; `[hydra]` in its .dvc/config says where the presets are.
        preset: a file of conf/preset/, without .yaml.
        overrides: Hydra overrides such as `train.iterations=2`.

    Raises:
        ValueError: the preset does not exist, or an override names no parameter.
    """
    with Repo(str(workspace)) as repo:
        hydra = repo.config["hydra"]
    try:
        compose_and_dump(
            output_file=workspace / "params.yaml",
            config_dir=str(workspace.resolve() / hydra.get("config_dir", "conf")),
            config_module=None,
            config_name=hydra.get("config_name", "config"),
            plugins_path=str(workspace / hydra.get("plugins_path", "")),
            overrides=[f"preset={preset}", *overrides],
        )
    except HydraException as error:
        raise ValueError(f"preset {preset!r} with overrides {list(overrides)}: {error}") from error


def _dvc(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "dvc", *arguments]


def _environment() -> dict[str, str]:
    """The environment of DVC and of the stages; `python` in a command is the interpreter of this process.

    Without PYTHONPATH, in which Prefect puts the folder that it loaded the flow from: the code of a stage is
    that of its own workspace.
    """
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    path = [str(Path(sys.executable).parent), environment.get("PATH", os.defpath)]
    return environment | {"PATH": os.pathsep.join(path), "PYTHONUNBUFFERED": "1", "DVC_NO_ANALYTICS": "1"}


def _address(stage: Stage, root: str) -> str:
    """The stage as `dvc repro` takes it in the root: NAME, elsewhere/dvc.yaml:NAME or FILE.dvc."""
    file = Path(stage.path).relative_to(root).as_posix()
    if not isinstance(stage, PipelineStage):
        return file
    return str(stage.name) if file == "dvc.yaml" else f"{file}:{stage.name}"


def _outcome_of_line(line: str, stage: str) -> Outcome | None:
    """What DVC's log line says about the stage; of several such lines the last one holds."""
    if line == f"Running stage '{stage}':":
        return "ran"
    if line.startswith(f"Stage '{stage}' is cached - skipping run"):
        return "restored"
    if line == f"Pulling data for stage: '{stage}'":
        return "pulled"
    if line == f"Stage '{stage}' didn't change, skipping":
        return "unchanged"
    return None


def _exit_code(tail: Iterable[str], dvc_code: int) -> int:
    """The command's exit code, which DVC only prints: it exits with 255 itself.

    DVC starts the command through $SHELL. One that becomes the command ends by the signal that ended it, -9 here;
    one that waits for it exits with 128 plus the signal's number instead.
    """
    codes = [int(match[1]) for line in tail if (match := re.search(r"exited with (-?\d+)$", line))]
    if not codes:
        return dvc_code
    signal_number = codes[-1] - 128
    return -signal_number if signal_number in set(signal.Signals) else codes[-1]


def _exit_text(code: int) -> str:
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    meaning = _EXIT_CODES.get(code)
    return f"failed with exit code {code}" + (f" ({meaning})" if meaning else "")
