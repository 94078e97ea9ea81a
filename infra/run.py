"""Check params.yaml, run the stages that are due, and print the answer and where the report is.

chunk-grpo run      (make run)

DVC's own lines go to logs/dvc.log. Exit code: that of the stage that failed, or of what DVC refuses (2: configuration,
3: data, 75: stopped, or a server did not answer; run it again), 1 for anything else. Ctrl-C stops it; the same command
goes on from there.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from chunk_grpo.artifacts import check_writable
from chunk_grpo.artifacts.layout import Layout
from chunk_grpo.config import load_params
from chunk_grpo.errors import ConfigError, DataError, Stopped, TransientError
from chunk_grpo.guard import supervised
from chunk_grpo.orchestration import shown
from chunk_grpo.orchestration.clones import locked
from chunk_grpo.orchestration.commands import require_clone, said_by_dvc
from chunk_grpo.orchestration.outcomes import StageFailed
from chunk_grpo.orchestration.pipeline import STOP_MARGIN
from chunk_grpo.stopping import STOP_SIGNALS, stop_seconds
from infra import params
from infra.command_line import command_parser

ROOT = Path(__file__).resolve().parents[1]
LOG = Path("logs", "dvc.log")
LOCK = Path(".dvc", "tmp", "chunk-grpo-run")
"""Locked while a run is active, whose log another one would overwrite."""
_EXPLAINED = (ConfigError.exit_code, DataError.exit_code, Stopped.exit_code)
"""Exit codes of stages that end with a sentence of their own."""

_REFUSALS = (
    (
        r"dvc\.lock' is invalid",
        ConfigError.exit_code,
        "Keep one side of each conflict in dvc.lock, or delete it: results that the cache has are restored.",
    ),
    (r"dvc\.yaml' is invalid", ConfigError.exit_code, "Mend dvc.yaml, or take it from git: `git checkout dvc.yaml`."),
    (
        r"is busy, it is being blocked by|Unable to acquire lock",
        Stopped.exit_code,
        "Another run is active in this folder: run again when it has ended.",
    ),
    (
        r"output '.*' does not exist",
        DataError.exit_code,
        "The stage ended without its result: code of yours that it imports may have ended Python (os._exit).",
    ),
)
"""What DVC itself says, the exit code, and what to do. The other stages are not begun."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run; return the exit code."""
    parser().parse_args(argv)
    require_clone(ROOT)
    params.check()
    check_writable(ROOT / LOG)
    with locked(ROOT / LOCK, wait=False) as is_free:
        if not is_free:
            raise TransientError(
                f"{ROOT}: another `chunk-grpo run` is active in this folder; run again when it has ended"
            )
        return _run()


def _run() -> int:
    with tempfile.TemporaryDirectory(prefix="chunk-grpo-") as folder:
        stages = Path(folder, "stages.jsonl")
        code, stopped_by = waited(reproduce(stages))
        lines = stages.read_text(encoding="utf-8").splitlines() if stages.exists() else []
    record = [json.loads(line) for line in lines]
    if code == 0:
        sys.stdout.write("\n".join(["", counts(record), *answer(ROOT), ""]))
        return 0
    failed = next((each for each in record if each["code"]), None)
    if failed and failed["code"] in _EXPLAINED:
        return int(failed["code"])  # its sentence is the last line on the screen
    if stopped_by:
        sys.stderr.write(
            f"stopped by {stopped_by}: finished stages and checkpoints are kept; chunk-grpo run goes on from there\n"
        )
        return Stopped.exit_code
    code, said = reason(failed, ROOT / LOG)
    sys.stderr.write(f"error: {said}\n")
    return code


def parser() -> argparse.ArgumentParser:
    return command_parser("run", __doc__)


def reproduce(record: Path) -> subprocess.Popen[bytes]:
    """Start the stages that are due; `record` gets what became of each."""
    patience = stop_seconds() + STOP_MARGIN  # from a stop to SIGKILL
    (ROOT / LOG).parent.mkdir(exist_ok=True)
    (ROOT / LOG).unlink(missing_ok=True)
    sys.stdout.flush()
    known = record.with_name("durations.json")
    known.write_text(json.dumps(durations(ROOT)), encoding="utf-8")
    words = supervised([shown.__file__, str(record), str(LOG), str(known)], patience)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # of all stages; `waited` passes it on
    try:
        return subprocess.Popen(words, cwd=ROOT)
    finally:
        signal.signal(signal.SIGHUP, before)


def waited(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """Wait for the stages; return DVC's exit code, and the name of the first stop signal, "" without one.

    A terminal sends Ctrl-C to all processes of the command, so it is not passed on: a second one would end a training
    without a checkpoint. Other signals are passed on as SIGTERM, since they reach this process alone.
    """
    first = ""

    def stop(number: int, frame: object) -> None:
        nonlocal first
        del frame
        first = first or signal.Signals(number).name
        if number != signal.SIGINT:
            process.terminate()

    for number in STOP_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, stop)
    return process.wait(), first


def durations(root: Path) -> dict[str, float]:
    """Seconds of stages by name, from the manifests of their last runs, if these had the parameters of now."""
    at = Layout.below(str(root))
    with suppress(OSError, ValueError, KeyError):
        recorded = json.loads(Path(at.settings).read_text(encoding="utf-8"))
        if recorded == load_params(root / "params.yaml").model_dump(mode="json"):
            found = (json.loads(path.read_text(encoding="utf-8")) for path in Path(at.runs).glob("*.json"))
            return {each["stage"]: each["seconds"] for each in found}
    return {}


def counts(record: Sequence[Mapping[str, Any]]) -> str:
    """How many stages ran, and how many had their results already."""
    ran = sum(each["outcome"] == "ran" for each in record)
    return f"{len(record)} stages: {ran} ran, {len(record) - ran} were up to date"


def answer(root: Path) -> list[str]:
    """The answer of a finished run, where its report is, and how to open it from elsewhere."""
    from chunk_grpo.reporting.answer import answer_lines  # here: importing scipy takes half a second

    at = Layout.below(str(root))
    return [
        *answer_lines(Path(at.summary)),
        "",
        f"Report: {at.report}/index.html",
        f"On a machine without a browser: python -m http.server 8000 --bind 127.0.0.1 --directory {at.report}",
        "and on yours: ssh -L 8000:127.0.0.1:8000 MACHINE, then http://127.0.0.1:8000",
    ]


def reason(failed: Mapping[str, Any] | None, log: Path) -> tuple[int, str]:
    """Exit code, and why the run failed: the stage that has no sentence of its own, or what DVC says."""
    if failed:
        said = StageFailed(failed["stage"], failed["code"], ())
        if said.exit_code < 0:
            hint = "if you did not end it, the system may have had no memory left (`dmesg`); run it again"
        else:
            hint = "its last lines are above; a traceback of chunk-grpo's own code is a bug"
        return 1, f"{said}: {hint}. DVC's lines are in {log}"
    text = log.read_text(encoding="utf-8") if log.exists() else ""
    last = said_by_dvc(text)
    known = ((code, advice) for pattern, code, advice in _REFUSALS if re.search(pattern, last))
    code, advice = next(known, (1, ""))
    words = [f"DVC: {last or 'ended without a message'}.", advice, f"DVC's lines are in {log}"]
    return code, " ".join(filter(None, words))
