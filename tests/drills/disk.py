"""Fill the disk while a stage runs, check the error and what was kept, free the space, and run again.

    python -m tests.drills.disk --disk cache

The disk is a small tmpfs in a private mount namespace (Linux only). Where unprivileged users may not create namespaces,
run it as root.
"""

import argparse
import errno
import json
import os
import re
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

from chunk_grpo.git import resolved
from chunk_grpo.orchestration.clones import make_clone
from infra.local_prefect import LocalPrefect, free_port, stop_on_signals
from infra.setup import ROOT
from tests.drills.command import DrillError, drill_parser, run_drill
from tests.drills.watch import Watch, damaged_objects, load, seconds_until_gone, watching
from tests.waiting import wait_for

DISKS = {"clones": ".prefect/runs", "cache": ".dvc/cache", "home": ".prefect"}
"""Folder on the small disk: the clones in which stages write, DVC's cache, or all of PREFECT_HOME with the server's
database."""

_BLOCK = bytes(2**16)
_BEAR_SECONDS = 30.0  # the server's database stays on the full disk this long after the stage has ended


class Filler(threading.Thread):
    """Thread that keeps a disk full, including space that is freed, until it is stopped."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self._file, self._ended = folder / "filler", threading.Event()

    def run(self) -> None:
        with self._file.open("ab", buffering=0) as stream:
            while not self._ended.is_set():
                for size in (len(_BLOCK), 1):
                    with suppress(BlockingIOError):
                        _write_all(stream.fileno(), _BLOCK[:size])
                self._ended.wait(0.05)

    def stop(self) -> None:
        """Stop, and free the space."""
        self._ended.set()
        self.join()
        self._file.unlink()


def _write_all(descriptor: int, block: bytes) -> None:
    """Write until the disk is full."""
    try:
        while True:
            os.write(descriptor, block)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise


def main() -> int:
    """Run the drill; return exit status 1 if it fails."""
    parser = drill_parser("disk", __doc__)
    parser.add_argument("--disk", choices=DISKS, default="clones", help="folder on the small disk")
    parser.add_argument("--megabytes", type=int, default=256, help="size of the disk")
    parser.add_argument("--root", type=Path, help="repository to serve (default: a clone of this one)")
    parser.add_argument("--preset", default="smoke")
    parser.add_argument("--overrides", type=json.loads, default={}, help="overrides of the flow, as JSON")
    parser.add_argument("--stage", default="train@chunk-ws-0", help="stage on pool gpu while the disk fills up")
    parser.add_argument("--command", default="stages.train", help="part of the stage's command line")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.inside:
        line = ["unshare", "--map-root-user", "--mount", sys.executable, "-m", "tests.drills.disk"]
        os.execvp(line[0], [*line, *sys.argv[1:], "--inside"])
    stop_on_signals()

    def run(folder: Path, console: Console) -> None:
        root = (options.root or folder / "repository").resolve()
        if options.root is None:
            make_clone(ROOT, resolved(ROOT, "HEAD"), root)
        disk = root / DISKS[options.disk]
        server = LocalPrefect(root=root, home=root / ".prefect", port=free_port())
        with mounted(disk, options.megabytes), watching(server) as watch:
            drill(watch, disk, options, console)

    return run_drill(run)


@contextmanager
def mounted(disk: Path, megabytes: int) -> Iterator[None]:
    """Mount a tmpfs of the given size at a folder."""
    disk.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(disk)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def drill(watch: Watch, disk: Path, options: argparse.Namespace, console: Console) -> None:
    """Fill the disk, check the failure, free the space, run again."""
    parameters: dict[str, Any] = {"preset": options.preset, "overrides": options.overrides}
    run = watch.start(**parameters)
    process = wait_for(lambda: _process(watch, run, options), 300, f"{options.stage} runs")
    filler, start = Filler(disk), time.monotonic()
    if options.disk == "home":
        wait_for(lambda: _truncate_log(disk / "prefect.db"), 30, "a moment without another reader")
    filler.start()
    try:
        if options.disk == "home":
            # The server cannot record the end of the run.
            seconds_until_gone([process], 120)
            time.sleep(_BEAR_SECONDS)
        else:
            watch.ended(run, 120)
    finally:
        filler.stop()
    console.print(f"{_failure(watch, run)}\nafter {time.monotonic() - start:.1f} s; {load()}")
    watch.prefect.check()
    found = watch.run(run)
    if (found["state_type"], found["run_count"]) != ("FAILED", 1):
        raise DrillError(f"it did not stay so: {found['state_type']}, run {found['run_count']} times")
    _check_cache(watch.prefect.root)
    again = watch.start(**parameters)
    completed = watch.ended(again, 600)
    if completed["state_type"] != "COMPLETED":
        raise DrillError(f"the run after that: {completed['state']['message']}")
    outcomes = watch.outcomes(again)
    console.print(f"The next run: {completed['state']['message']}")
    done = [name for name, outcome in watch.outcomes(run).items() if outcome in ("ran", "restored")]
    if lost := [name for name in done if outcomes[name] != "restored"]:
        raise DrillError(f"computed again: {', '.join(lost)}")
    console.print(f"Kept from before: {', '.join(done)}")
    _check_cache(watch.prefect.root)


def _process(watch: Watch, run: str, options: argparse.Namespace) -> psutil.Process | None:
    """Process of the stage during which the disk fills up; None before it starts."""
    children: Sequence[dict[str, Any]] = watch.children(run, options.stage)
    return watch.stage(children[-1]["id"], options.command) if children else None


def _truncate_log(database: Path) -> bool:
    """Truncate SQLite's write-ahead log, whose space it could reuse; False while the log has another reader."""
    with closing(sqlite3.connect(database)) as connection:
        (busy, _, _) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return not busy


def _failure(watch: Watch, run: str) -> str:
    """Error message of the failed run; it may name another stage that ran out of space first."""
    ended = watch.ended(run, 120)
    message = str(ended["state"]["message"])
    if ended["state_type"] != "FAILED" or not re.search("stage .*no space left", message, re.I | re.S):
        raise DrillError(f"no clear error: {ended['state_type']}: {message}")
    return message


def _check_cache(root: Path) -> None:
    if damaged := damaged_objects(root / ".dvc" / "cache"):
        raise DrillError(f"damaged: {', '.join(map(str, damaged))}")


if __name__ == "__main__":
    sys.exit(main())
