"""Two machines on loopback: a launcher that starts a stage, and one that follows it, with a folder that both see."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile

from chunk_grpo.environment import MACHINE, MACHINES, MASTER_ADDRESS, NOTES, PROCESSES
from tests.conftest import ROOT
from tests.waiting import wait_for


@dataclass(frozen=True)
class Pair:
    """Two machines."""

    folder: Path
    """Folder of the stages."""
    notes: Path
    """Where both leave their notes."""
    processes: int = 1
    """Number of processes on each."""

    def environment(self, machine: int) -> dict[str, str]:
        places = {
            MACHINES: "2",
            MACHINE: str(machine),
            MASTER_ADDRESS: "127.0.0.1",
            NOTES: str(self.notes),
            PROCESSES: str(self.processes),
            "PYTHONPATH": str(ROOT),
        }
        return os.environ | {"HF_HUB_OFFLINE": "1", "COLUMNS": "200"} | places

    @contextmanager
    def started(self, machine: int, command: Sequence[str]) -> "Iterator[Launcher]":
        """A launcher; on leaving it is killed, and its processes end with it."""
        with NamedTemporaryFile("w+", encoding="utf-8") as messages:
            process = subprocess.Popen(
                [sys.executable, *command],
                cwd=ROOT if machine else self.folder,
                env=self.environment(machine),
                stderr=messages,
                start_new_session=True,
            )
            try:
                yield Launcher(process, Path(messages.name))
            finally:
                process.kill()
                process.wait()

    def following(self) -> "AbstractContextManager[Launcher]":
        """`python -m stages.follow` on the second machine."""
        return self.started(1, ["-m", "stages.follow"])


@dataclass(frozen=True)
class Launcher:
    """A running launcher and the file of its messages."""

    process: "subprocess.Popen[bytes]"
    messages: Path

    def says(self, text: str, seconds: float = 60) -> None:
        """Wait until it says so."""
        try:
            wait_for(lambda: text in self.messages.read_text(), seconds, text)
        except AssertionError as error:
            raise AssertionError(f"{text!r} not in {self.messages.read_text()!r}") from error

    def ended(self, seconds: float = 120) -> tuple[int, str]:
        """Exit code and messages."""
        return self.process.wait(timeout=seconds), self.messages.read_text()
