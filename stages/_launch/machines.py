"""Machines that share a stage, through a TCPStore of torch on machine 0.

Machine 0 runs the stage. Each other machine runs `python -m stages.follow`, which waits for a ticket and starts its
part of the stage's processes. The variables are torchrun's, so any scheduler that starts torchrun fits.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from chunk_grpo import environment
from chunk_grpo.errors import ConfigError, TransientError

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # not in its __all__

JOIN_SECONDS = 600.0
"""Seconds that a stage waits for the other machines."""

LOST_SECONDS = 30.0
"""Seconds of silence after which a machine counts as lost."""

_BEAT_SECONDS = 0.2
_PORT = 29500  # torchrun's default

_TICKET, _ORDER = "ticket", "order"


@dataclass(frozen=True)
class Machines:
    """This machine among those that share a stage.

    Attributes:
        count: Number of machines, >= 1.
        index: Number of this machine, from 0.
        address: Host name or IP address of machine 0.
        port: TCP port on machine 0 where the machines meet.
    """

    count: int = 1
    index: int = 0
    address: str = "127.0.0.1"
    port: int = _PORT

    @property
    def others(self) -> range:
        """Numbers of the machines that follow machine 0."""
        return range(1, self.count)


@dataclass(frozen=True)
class Ticket:
    """A stage to be run by all machines.

    Attributes:
        arguments: Arguments of Python.
        folder: Folder of the stage on machine 0.
        params: Text of the parameter file.
        code: Digest of the pipeline's code.
        processes: Number of processes on each machine.
        port: Port on machine 0 where the processes meet.
        name: Unique name.
    """

    arguments: list[str]
    folder: str
    params: str
    code: str
    processes: int
    port: int
    name: str = ""


@dataclass(frozen=True)
class Outcome:
    """How a machine's processes ended.

    Attributes:
        code: Exit code; 0: all succeeded.
        account: Lines on the first process that failed.
    """

    code: int
    account: str = ""


def machines_of_environment() -> Machines:
    """This machine's place, from the variables of torchrun; one machine if they are not set.

    Raises:
        ConfigError: A variable is missing or has a bad value.
    """
    count = _number(environment.MACHINES, "1", 1)
    if count == 1:
        return Machines()
    index = _number(environment.MACHINE, None, 0)
    if index >= count:
        raise ConfigError(
            f"{environment.MACHINE}: must be below {environment.MACHINES} = {count}, got {index}"
        )
    address = os.environ.get(environment.MASTER_ADDRESS)
    if not address:
        raise ConfigError(
            f"{environment.MASTER_ADDRESS}: must be the host name of machine 0, because {environment.MACHINES} is "
            f"{count}, got nothing"
        )
    return Machines(count, index, address, _number(environment.MASTER_PORT, str(_PORT), 1))


def _number(name: str, default: str | None, least: int) -> int:
    value = os.environ.get(name, default)
    if value is None or not value.isdecimal() or int(value) < least:
        raise ConfigError(f"{name}: must be a whole number of at least {least}, got {value!r}")
    return int(value)


class Member:
    """The processes of another machine, with the interface of a process.

    Attributes:
        returncode: Exit code, or None while the processes run.
        account: Lines on the first process that failed.
    """

    def __init__(self, index: int, count: int, order: Callable[[str], None]) -> None:
        self.returncode: int | None = None
        self.account = ""
        self.is_lost = False
        self._who, self._order = f"machine {index} of {count}", order
        self._ended = threading.Event()
        self._beat, self._heard_at = -1, time.monotonic()

    def poll(self) -> int | None:
        """Exit code, or None while the processes run."""
        return self.returncode

    @property
    def has_ended(self) -> bool:
        """Whether all processes of the machine have ended, or the machine is lost."""
        return self._ended.is_set()

    def terminate(self) -> None:
        """Ask for a stop."""
        self._order("stop")

    def kill(self) -> None:
        """Ask for an end at once."""
        self._order("kill")

    def wait(self) -> None:
        """Wait until all processes of the machine have ended, or the machine is lost."""
        self._ended.wait()

    def hear(self, beat: int, failed: Outcome | None, ended: Outcome | None) -> None:
        """Take note of what the machine's launcher has written to the store."""
        if beat != self._beat:
            self._beat, self._heard_at = beat, time.monotonic()
        outcome = failed or ended
        if outcome is not None and self.returncode is None:
            self.returncode, self.account = outcome.code, self._prefixed(outcome.account)
        if ended is not None:
            self._ended.set()
        elif time.monotonic() - self._heard_at > LOST_SECONDS:
            self.lose()

    def lose(self) -> None:
        """Take note that the machine does not answer."""
        if not self._ended.is_set():
            self.is_lost, self.returncode = True, TransientError.exit_code
            self.account = (
                f"{self._who} is lost: its connection is closed or has been silent for {LOST_SECONDS:.0f} s. Start "
                "it again, then run the same command; a training resumes from its newest checkpoint.\n"
            )
            self._ended.set()

    def _prefixed(self, account: str) -> str:
        return "".join(f"{self._who}: {line}\n" for line in account.splitlines())


class Link:
    """Exchange with other machines during a stage, in a thread: beats, outcomes and orders.

    Attributes:
        members: The other machines that this one watches: all others on machine 0, and machine 0 on the others.
        order: Newest order of machine 0: "", "stop" or "kill".
    """

    def __init__(self, store: TCPStore, machines: Machines) -> None:
        """Start the thread."""
        self._store, self._index = store, machines.index
        watched = machines.others if machines.index == 0 else [0]
        self.members = {index: Member(index, machines.count, self._say_order) for index in watched}
        self.order = ""
        self._sent: dict[str, str] = {}
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="machines", daemon=True)
        self._thread.start()

    def report(self, what: str, outcome: Outcome) -> None:
        """Report that a process has failed (`what` is "failed") or that all have ended ("ended")."""
        self._say(f"{what}/{self._index}", json.dumps(asdict(outcome)))

    def close(self) -> None:
        """Send what is left and end the thread."""
        self._closed.set()
        self._thread.join()

    def _say_order(self, order: str) -> None:
        if self._index == 0:
            self._say(_ORDER, order)

    def _say(self, key: str, value: str) -> None:
        with self._lock:
            self._sent[key] = value

    def _run(self) -> None:
        from torch.distributed import DistError  # here: slow to import

        try:
            while True:
                is_last = self._closed.is_set()
                self._exchange()
                if is_last:
                    return
                self._closed.wait(_BEAT_SECONDS)
        except (DistError, RuntimeError):  # the store is on machine 0
            for member in self.members.values():
                member.lose()

    def _exchange(self) -> None:
        with self._lock:
            sent, self._sent = self._sent, {}
        for key, value in sent.items():
            self._store.set(key, value)
        self._store.add(f"beat/{self._index}", 1)
        for index, member in self.members.items():
            member.hear(
                self._store.add(f"beat/{index}", 0),
                self._outcome("failed", index),
                self._outcome("ended", index),
            )
        if self._index > 0 and self._store.check([_ORDER]):
            self.order = self._store.get(_ORDER).decode()

    def _outcome(self, what: str, index: int) -> Outcome | None:
        key = f"{what}/{index}"
        return Outcome(**json.loads(self._store.get(key))) if self._store.check([key]) else None


def call(machines: Machines, ticket: Ticket) -> TCPStore:
    """Offer a ticket to the other machines; return the store when all have accepted it.

    Raises:
        ConfigError: A machine refuses the ticket, or the port is in use.
        TransientError: A machine does not answer.
    """
    # Here: slow to import. TCPStore is documented, but not in __all__.
    from torch.distributed import DistError, TCPStore  # type: ignore[attr-defined]

    try:
        store = TCPStore("0.0.0.0", machines.port, is_master=True, wait_for_workers=False)
    except (DistError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"{environment.MASTER_PORT}: must be a free port of this machine, got {machines.port} ({reason})"
        ) from error
    named = {**asdict(ticket), "name": uuid.uuid4().hex}
    store.set(_TICKET, json.dumps(named))
    begun, is_announced = time.monotonic(), False
    while absent := [index for index in machines.others if not store.check([f"answer/{index}"])]:
        waited = time.monotonic() - begun
        if waited > JOIN_SECONDS:
            raise TransientError(
                f"machines {_list(absent)} of {machines.count} have not answered for {JOIN_SECONDS:.0f} s: start "
                f"`python -m stages.follow` there, with {environment.MACHINE} and {environment.MASTER_ADDRESS}"
            )
        if waited > 5 and not is_announced:
            is_announced = True
            sys.stderr.write(f"waiting for machines {_list(absent)} of {machines.count}\n")
        time.sleep(_BEAT_SECONDS)
    for index in machines.others:
        if refusal := store.get(f"answer/{index}").decode():
            raise ConfigError(f"machine {index} of {machines.count}: {refusal}")
    return store


def next_ticket(machines: Machines, done: str) -> tuple[TCPStore, Ticket]:
    """Wait for a stage on machine 0.

    Args:
        machines: This machine's place.
        done: Name of the last ticket, which is not taken again.
    """
    # Here: slow to import. TCPStore is documented, but not in __all__.
    from torch.distributed import DistError, TCPStore  # type: ignore[attr-defined]

    while True:
        try:
            # TCPStore logs each failed attempt; this one does not.
            socket.create_connection((machines.address, machines.port), timeout=5).close()
            store = TCPStore(
                machines.address,
                machines.port,
                is_master=False,
                wait_for_workers=False,
                timeout=timedelta(seconds=5),
            )
            ticket = Ticket(**json.loads(store.get(_TICKET)))
            if ticket.name != done:
                return store, ticket
        except (OSError, DistError, RuntimeError):
            pass  # no stage runs on machine 0
        time.sleep(1)


def answer(store: TCPStore, machines: Machines, refusal: str) -> None:
    """Accept a ticket, or refuse it with a reason."""
    store.set(f"answer/{machines.index}", refusal)


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
