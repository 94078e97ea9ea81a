"""DVC's command line, which also records what became of each stage.

`dvc_process.py RECORD ARGUMENTS ...`, which guard.py runs, does the same as `dvc ARGUMENTS ...`; a `+` among them
begins a second command. RECORD, a file, gets a line of JSON for each stage of `dvc repro`. The argument
`push-run-cache` sends the entries of the run cache that the remote lacks or has in part; `dvc push --run-cache` sends
all each time.

It is found by its path, since the folder in which it runs may have another version of this package. It takes hold of
two functions of DVC, which documents neither: tests/orchestration/test_pipeline.py checks that.
"""

import json
import logging
import re
import sys
import time
from pathlib import Path
from typing import Any

import dvc.repo.reproduce as reproducing
import dvc.stage.run as running
from dvc.cli import main as dvc_main
from dvc.repo import Repo
from dvc.stage.exceptions import StageCmdFailedError


def main(record: str, arguments: list[str], watch: Any = None) -> int:
    """Run the commands; return the exit code of the last one. `watch` is as in `record_stages`."""
    if arguments == ["push-run-cache"]:
        return push_run_cache()
    # With `verify` DVC reports damaged objects at debug level only.
    logging.getLogger("dvc_data.hashfile.db").setLevel("DEBUG")
    logging.getLogger("dvc_data.hashfile.db.local").setLevel("INFO")
    record_stages(Path(record), watch)
    if "+" in arguments:
        end = arguments.index("+")
        dvc_main(arguments[:end])
        arguments = arguments[end + 1 :]
    return int(dvc_main(arguments))


def record_stages(record: Path, watch: Any = None) -> None:
    """Let `dvc repro` record each stage: its name, outcome, seconds, bytes of its outputs, and exit code if it failed.

    Outcomes are `ran`, also if the command failed; `restored`, from the run cache; `unchanged`; and `failed`, before
    its command was run. `watch` (`shown.Shown`) gets the plan, and each command's begin and end.
    """
    run, reproduce, ran = running.cmd_run, reproducing._reproduce_stage, set[str]()
    reproduce_all = reproducing._reproduce

    def run_noted(stage: Any, **options: Any) -> None:
        ran.add(stage.addressing)
        if watch:
            watch.begin(stage.addressing)
        run(stage, **options)

    def reproduce_recorded(stage: Any, **options: Any) -> Any:
        start, outcome, code = time.monotonic(), "failed", None
        try:
            changed = reproduce(stage, **options)
            outcome = "restored" if changed is not None and not stage.frozen else "unchanged"
            return changed
        except StageCmdFailedError as error:
            code = int(re.sub(r"(.|\n)* ", "", str(error)))
            raise
        finally:
            if stage.addressing in ran:
                outcome = "ran"
                if watch and code is None:
                    watch.end(stage.addressing, time.monotonic() - start)
            line = {
                "stage": stage.addressing,
                "outcome": outcome,
                "seconds": time.monotonic() - start,
                "size": sum(out.meta.size or 0 for out in stage.outs if out.meta),
                "code": code,
            }
            with record.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(line) + "\n")

    def reproduce_planned(stages: Any, graph: Any = None, **options: Any) -> Any:
        if watch:
            watch.plan({stage.addressing: _needs(stage, graph) for stage in stages})
        return reproduce_all(stages, graph=graph, repro_fn=reproduce_recorded, **options)

    running.cmd_run = run_noted
    reproducing._reproduce = reproduce_planned


def _needs(stage: Any, graph: Any) -> list[str]:
    """Stages whose outputs it reads, besides those that always run: their outputs seldom change."""
    found = graph.successors(stage) if graph else ()
    return [needed.addressing for needed in found if not needed.always_changed]


def push_run_cache() -> int:
    """Send the entries of the run cache; return the exit code."""
    try:
        with Repo() as repo:
            remote, cache = repo.cloud.get_remote(), Path(repo.cache.local.path).parents[1]
            fs, runs = remote.fs, remote.fs.join(remote.path, "runs")
            if fs.protocol in ("http", "https"):  # nothing can be listed there
                return 0
            found = {} if fs.protocol == "local" else fs.fs.find(runs, detail=True)
            there = {tuple(fs.parts(path)[-3:]): info["size"] for path, info in found.items()}
            for entry in sorted((cache / "runs").glob("??/*/*")):
                if entry.suffix != ".tmp" and there.get(entry.parts[-3:]) != entry.stat().st_size:
                    fs.put_file(str(entry), fs.join(runs, *entry.parts[-3:]))
    except Exception as error:
        sys.stderr.write(f"ERROR: the run cache was not sent: {type(error).__name__}: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
