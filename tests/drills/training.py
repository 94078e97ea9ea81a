"""Disturb a real training after its first checkpoint, and compare its results with an undisturbed one byte by byte.

    python -m tests.drills.training --kill stage

Both run in clones of this repository at its commit, each with its own DVC cache, server and PREFECT_HOME.
"""

import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import psutil
from rich.console import Console

from chunk_grpo.environment import END_STALLED, STOP_SECONDS
from infra.local_prefect import stop_on_signals
from tests import checkpoints as kept_by
from tests.drills.command import DrillError, drill_parser, run_drill
from tests.drills.watch import FINAL, Watch, load, seconds_until_gone, serving, tree
from tests.waiting import wait_for

VARIANT = "chunk-ws"
STAGE = f"train@{VARIANT}-0"
COMMAND = f"stages.train --manifest artifacts/runs/{STAGE}.json"
PARAMETERS: dict[str, Any] = {"preset": "smoke", "until": STAGE, "overrides": {"train": {"iterations": 8}}}
"""Flow parameters; enough iterations for a kill between the first checkpoint and the end."""

Victim = Literal["stage", "engine", "stalled"]


def main() -> int:
    """Run the drill; return exit status 1 if it fails."""
    parser = drill_parser("training", __doc__)
    choices = ["stage", "engine", "stalled"]
    what = "the training, or its flow run; stalled: the training is stopped by SIGSTOP, and its flow run ends it"
    parser.add_argument("--kill", choices=choices, default="stage", help=what)
    options = parser.parse_args()
    stop_on_signals()

    def drill(folder: Path, console: Console) -> str:
        with serving(folder / "untouched") as watch:
            run, _ = completed(watch, watch.start(**PARAMETERS))
            untouched = outputs(watch, run)
        os.environ |= {END_STALLED: "3", STOP_SECONDS: "1"} if options.kill == "stalled" else {}
        with serving(folder / "killed") as watch:
            killed = outputs(watch, disturbed(watch, options.kill, console))
        compare(untouched, killed)
        return f"The same bytes in {len(killed)} files; {load()}"

    return run_drill(drill)


def completed(watch: Watch, run: str) -> tuple[str, set[str]]:
    """Wait for a run to complete; return its id and the names of the checkpoints written meanwhile."""
    begun, written = time.time(), set[str]()

    def ended() -> bool:
        with suppress(FileNotFoundError):  # replaced by a newer one
            written.update(path.name for path in checkpoints(watch) if path.stat().st_mtime > begun)
        return watch.run(run)["state_type"] in FINAL

    wait_for(ended, 600, f"the end of run {run}")
    found = watch.run(run)
    if found["state_type"] != "COMPLETED":
        raise DrillError(f"{found['state_type']}: {found['state']['message']}")
    return run, written


def disturbed(watch: Watch, victim: Victim, console: Console) -> str:
    """Kill the victim while there is a checkpoint; return the id of the run that finally completed."""
    run = watch.start(**PARAMETERS)
    wait_for(lambda: checkpoints(watch), 300, "a checkpoint")
    (child,) = watch.children(run, STAGE)
    stage, engine = watch.stage(child["id"], COMMAND), watch.engine(child["id"])
    if stage is None:
        raise DrillError("training had ended before it was killed")
    if victim == "stalled":
        return stalled(watch, run, stage, console)
    processes, start = tree(engine), time.monotonic()
    (stage if victim == "stage" else engine).kill()
    gone = seconds_until_gone(processes, 30)
    console.print(f"{len(processes)} processes gone after {gone:.1f} s; {load()}")
    kept = checkpoints(watch)
    if not kept:
        raise DrillError("no checkpoint was left")
    if victim == "stage":
        for what, each in {"training": child["id"], "run": run}.items():
            ended = watch.ended(each, 10)
            message = str(ended["state"]["message"])
            if ended["state_type"] != "FAILED" or f"stage {STAGE} was ended by SIGKILL" not in message:
                raise DrillError(f"{what}: {ended['state_type']}: {message}")
            console.print(f"{what} Failed after {time.monotonic() - start:.1f} s")
        run = watch.start(**PARAMETERS)
    console.print(f"Resumes from {kept[-1].name}: {load()}")
    _, written = completed(watch, run)
    if not written or min(written) <= kept[-1].name:
        raise DrillError(f"did not resume from {kept[-1].name}: wrote {sorted(written)}")
    if watch.outcomes(run)[STAGE] != "ran":
        raise DrillError(f"{STAGE} did not run: {watch.outcomes(run)[STAGE]}")
    console.print(f"Wrote {', '.join(sorted(written))}")
    console.print(f"Completed {time.monotonic() - start:.1f} s after the kill")
    return run


def stalled(watch: Watch, run: str, stage: psutil.Process, console: Console) -> str:
    """Stop the training; return the run, which completes by itself."""
    stage.suspend()
    start, kept = time.monotonic(), checkpoints(watch)[-1].name
    gone = seconds_until_gone([stage], 400)
    console.print(f"Ended {gone:.1f} s after SIGSTOP; {load()}")
    _, written = completed(watch, run)
    if not written or min(written) <= kept:
        raise DrillError(f"did not resume from {kept}: wrote {sorted(written)}")
    console.print(f"Resumed from {kept}, completed {time.monotonic() - start:.1f} s after SIGSTOP")
    return run


def checkpoints(watch: Watch) -> list[Path]:
    """Checkpoints of the running training, newest last."""
    return kept_by.checkpoints(watch.prefect.home / "state")


def outputs(watch: Watch, run: str) -> dict[str, bytes]:
    """Outputs of the training in the clone of a run: content by path."""
    clone = max(watch.prefect.home.glob(f"runs/*-{run}-*"))
    folder = clone / "artifacts" / "train" / VARIANT / "seed-0"
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def compare(untouched: dict[str, bytes], killed: dict[str, bytes]) -> None:
    """Compare the outputs of two trainings."""
    names = sorted(untouched.keys() | killed.keys())
    if differ := [name for name in names if untouched.get(name) != killed.get(name)]:
        raise DrillError(f"not the same: {', '.join(differ)}")
    if "metrics.parquet" not in names:
        raise DrillError("there are no metrics")


if __name__ == "__main__":
    sys.exit(main())
