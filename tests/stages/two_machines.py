"""Two machines on this one: a launcher each, a folder each, joined over loopback."""

import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile

from chunk_grpo.environment import MACHINE, MACHINES, MACHINES_KEY, MASTER_ADDRESS, MASTER_PORT, PROCESSES
from tests.conftest import ROOT
from tests.waiting import wait_for


@dataclass(frozen=True)
class Pair:
    """Machine 0 and the one that follows it."""

    folders: tuple[Path, Path]
    """Folder of each."""
    port: int
    """Where they meet."""
    processes: int
    """Number of processes on each."""
    code: tuple[Path, Path]
    """Folder of the code on each."""
    keys: tuple[Path, Path]
    """File with the key of each."""

    def environment(self, machine: int) -> dict[str, str]:
        places = {
            MACHINES: "2",
            MACHINE: str(machine),
            MASTER_ADDRESS: "127.0.0.1",
            MASTER_PORT: str(self.port),
            PROCESSES: str(self.processes),
            MACHINES_KEY: str(self.keys[machine]),
            "PYTHONPATH": str(self.code[machine]),
        }
        return os.environ | {"HF_HUB_OFFLINE": "1", "COLUMNS": "200"} | places

    @contextmanager
    def started(self, machine: int, command: Sequence[str]) -> "Iterator[Launcher]":
        """A launcher; on leaving it is killed, and its processes end with it."""
        with NamedTemporaryFile("w+", encoding="utf-8") as messages:
            process = subprocess.Popen(
                [sys.executable, *command],
                cwd=self.folders[machine],
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
        return self.started(1, ["-m", "stages.follow", "--here"])


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


def pair(first: Path, second: Path, processes: int = 1, code: Path = ROOT) -> Pair:
    """Two machines with these folders, the same code and the same key."""
    key = a_key(first.parent / "key")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return Pair((first, second), int(probe.getsockname()[1]), processes, (code, code), (key, key))


def a_key(path: Path) -> Path:
    """A new file with a key."""
    path.touch(mode=0o600)
    path.write_text(secrets.token_hex())
    return path
