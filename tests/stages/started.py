"""A stage for tests, started as a process, or as several."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chunk_grpo.environment import PROCESSES
from tests.conftest import ROOT

STAGE = '''"""A stage for tests."""
import os, sys, time
from chunk_grpo.stopping import STOP, begin
begin()
from dataclasses import dataclass
from pathlib import Path
from chunk_grpo.errors import DataError, TransientError
from stages._launch.processes import run_processes
from stages._stage import value, writes

@dataclass(frozen=True)
class Arguments:
    work: str = value("what to do")
    out: str = writes("where each process leaves a file")

def main(params, arguments):
    rank, work = os.environ.get("RANK", "0"), arguments.work
    variables = ("WORLD_SIZE", "ACCELERATE_USE_CPU", "OMP_NUM_THREADS")
    mine = Path(arguments.out, rank)
    mine.write_text(" ".join([params.composed_from, *(os.environ.get(name, "") for name in variables)]))
    if work == "fail":
        raise TransientError("all of us")
    if work in ("the second fails", "the second is killed") and rank == "1":
        first = mine.with_name("0")
        while not (first.exists() and first.read_text() == "begun"):
            time.sleep(0.01)
        if work == "the second is killed":
            os.kill(os.getpid(), 9)
        raise KeyError("the second")
    if work == "bug":
        raise KeyError("a bug")
    if work == "wait":
        time.sleep(60)
    if work == "load":
        try:
            time.sleep(60)
        except Exception as error:
            raise DataError("a damaged file") from error
    if work in ("hang", "train", "full", "the second fails", "the second is killed"):
        with STOP.deferred():
            mine.write_text("begun")
            while not STOP.requested:
                time.sleep(0.01)
            if work == "hang":
                mine.write_text("asked")
                time.sleep(60)
            time.sleep(float(rank == "0"))  # saves a checkpoint
            if work == "full":
                raise DataError("no room for it")
            mine.write_text("saved")

if __name__ == "__main__":
    sys.exit(run_processes(main, Arguments, lambda params, arguments: 4, lambda params: params.train.cpu_processes))
'''


class Started:
    """The stage in a folder, in one process or more."""

    def __init__(self, folder: Path, processes: int = 1, *, asks: bool = True) -> None:
        """The number of processes is that of the environment if it `asks`, else that of params.yaml."""
        self.folder, self.processes, self.asks = folder, processes, asks
        (folder / "stage.py").write_text(STAGE)
        (folder / "out").mkdir()

    def command(self, work: str | None, *more: str) -> list[str]:
        options = ["--params", str(ROOT / "params.yaml"), "--manifest", str(self.folder / "runs" / "test@a.json")]
        works = [] if work is None else ["--work", work]
        return [sys.executable, str(self.folder / "stage.py"), *options, "--out", "out", *works, *more]

    def environment(self, **variables: str) -> dict[str, str]:
        processes = {PROCESSES: str(self.processes)} if self.asks else {}
        on_cpu = {"CUDA_VISIBLE_DEVICES": ""}  # and torch is not imported to count GPUs
        return os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "40"} | on_cpu | processes | variables

    @contextmanager
    def start(self, work: str | None, *more: str, **variables: str) -> "Iterator[subprocess.Popen[str]]":
        """Killed on leaving if it still runs, which ends its processes too."""
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        environment = self.environment(**variables)
        with subprocess.Popen(  # type: ignore[call-overload]
            self.command(work, *more), cwd=self.folder, env=environment, start_new_session=True, **streams
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def ended(self, work: str | None, *more: str, **variables: str) -> tuple[int, str, str]:
        """Exit code, output and errors of a stage that nobody stops."""
        with self.start(work, *more, **variables) as process:
            said, errors = process.communicate(timeout=60)
        return process.returncode, said, errors

    def says(self, rank: int) -> str:
        path = self.folder / "out" / str(rank)
        return path.read_text() if path.exists() else ""

    def all_say(self, text: str) -> bool:
        """Whether each process has left this text."""
        return {self.says(rank) for rank in range(self.processes)} == {text}
