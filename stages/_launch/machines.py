"""Machines that share a stage, through a TCPStore of torch on machine 0.

Machine 0 runs the stage. Each other machine runs `python -m stages.follow`, which waits for a ticket and starts its
part of the stage's processes. The variables are torchrun's, so any scheduler that starts torchrun fits.
"""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import stages
from chunk_grpo import environment
from chunk_grpo.errors import ConfigError, TransientError
from stages._launch.signed import SignedStore, UnsignedError, machines_key

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # not in its __all__

JOIN_SECONDS = 600.0
"""Seconds that a stage waits for the other machines."""

LOST_SECONDS = 30.0
"""Seconds of silence after which a machine counts as lost."""

_BEAT_SECONDS = 0.2
_PORT = 29500  # torchrun's default
_CALL = "call"  # this name is in the store while machine 0 waits for others


@dataclass(frozen=True)
class Machines:
    """This machine among those that share a stage."""

    count: int = 1
    """Number of machines, >= 1."""
    index: int = 0
    """Number of this machine, from 0."""
    address: str = "127.0.0.1"
    """Host name or IP address of machine 0."""
    port: int = _PORT
    """TCP port on machine 0 where the machines meet."""
    key: bytes = field(default=b"", repr=False)
    """Key that signs what they say; empty for one machine."""

    @property
    def others(self) -> range:
        """Numbers of the machines that follow machine 0."""
        return range(1, self.count)


@dataclass(frozen=True)
class Ticket:
    """A stage to be run by all machines."""

    arguments: list[str]
    """Arguments of Python."""
    folder: str
    """Folder of the stage on machine 0."""
    params: str
    """Text of the parameter file."""
    code: str
    """Digest of the pipeline's code."""
    processes: int
    """Number of processes on each machine."""
    port: int
    """Port on machine 0 where the processes meet."""
    name: str = ""
    """Unique name."""


def is_stage(arguments: Sequence[str]) -> bool:
    """Whether arguments of Python run a stage of this code, `-m stages.NAME`, with any options."""
    option, module, *_ = [*arguments, "", ""]
    found = re.fullmatch(r"stages\.([a-z]\w*)", module)
    return (
        option == "-m" and found is not None and Path(stages.__file__).with_name(f"{found[1]}.py").is_file()
    )


@dataclass(frozen=True)
class Outcome:
    """How a machine's processes ended."""

    code: int
    """Exit code; 0: all succeeded."""
    account: str = ""
    """Lines on the first process that failed."""


def machines_of_environment() -> Machines:
    """This machine's place, from the variables of torchrun; one machine if they are not set."""
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
    return Machines(count, index, address, _number(environment.MASTER_PORT, str(_PORT), 1), machines_key())


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

    def __init__(self, store: SignedStore, machines: Machines, ticket: Ticket) -> None:
        """Start the thread."""
        self._store, self._index, self._name = store, machines.index, ticket.name
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
            self._say("order", order)

    def _say(self, key: str, value: str) -> None:
        with self._lock:
            self._sent[f"{self._name}/{key}"] = value

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
        beats = self._store.store
        beats.add(f"beat/{self._index}", 1)
        for index, member in self.members.items():
            member.hear(
                beats.add(f"beat/{index}", 0),
                self._outcome("failed", index),
                self._outcome("ended", index),
            )
        if self._index > 0:
            self.order = self._heard("order") or self.order

    def _outcome(self, what: str, index: int) -> Outcome | None:
        text = self._heard(f"{what}/{index}")
        return None if text is None else Outcome(**json.loads(text))

    def _heard(self, key: str) -> str | None:
        """What another machine said, or None; what somebody else wrote is not heard."""
        name = f"{self._name}/{key}"
        try:
            return self._store.get(name) if self._store.has(name) else None
        except UnsignedError:
            return None


def call(machines: Machines, ticket: Ticket) -> Link:
    """Offer a ticket to the other machines; return the exchange with them when all have accepted it.

    ConfigError if one refuses it or has another key, or the port is in use; TransientError if one does not answer.
    """
    ticket = replace(ticket, name=uuid.uuid4().hex)
    store = SignedStore(_store_here(machines), machines.key)
    store.set(_CALL, "")
    # Each machine chooses the name under which it takes the ticket, so that no old ticket is taken again.
    offered: dict[int, str] = {}
    begun, is_announced = time.monotonic(), False
    while absent := [i for i in machines.others if not store.has(f"answer/{offered.get(i)}")]:
        waited = time.monotonic() - begun
        if waited > JOIN_SECONDS:
            raise TransientError(
                f"the machines with number {_list(absent)} have not answered for {JOIN_SECONDS:.0f} s: start "
                f"`python -m stages.follow` there, with {environment.MACHINE} and {environment.MASTER_ADDRESS}"
            )
        if waited > 5 and not is_announced:
            is_announced = True
            sys.stderr.write(f"waiting for the machines with number {_list(absent)}; this one is 0\n")
        for index in absent:
            if store.has(f"ready/{index}"):
                offered[index] = _said_by(index, store, f"ready/{index}", machines)
                store.set(f"ticket/{offered[index]}", json.dumps(asdict(ticket)))
        time.sleep(_BEAT_SECONDS)
    store.store.delete_key(_CALL)
    for index in machines.others:
        if refusal := _said_by(index, store, f"answer/{offered[index]}", machines):
            raise ConfigError(f"machine {index} of {machines.count}: {refusal}")
    return Link(store, machines, ticket)


def _said_by(index: int, store: SignedStore, name: str, machines: Machines) -> str:
    try:
        return store.get(name)
    except UnsignedError as error:
        raise ConfigError(
            f"machine {index} of {machines.count}: must have the key of machine 0, but what it says is not signed with "
            f"it; give both the same file {environment.MACHINES_KEY}"
        ) from error


def _store_here(machines: Machines) -> TCPStore:
    """The store on machine 0, on the address by which the others reach it.

    It is on all addresses if that is no IPv4 address of this machine, or loopback under another name, as on Debian.
    """
    # Here: slow to import. TCPStore is documented, but not in __all__.
    from torch.distributed import DistError, TCPStore  # type: ignore[attr-defined]

    host, listener = "0.0.0.0", None
    try:
        try:
            found = str(socket.getaddrinfo(machines.address, machines.port, socket.AF_INET)[0][4][0])
            if found == machines.address or not found.startswith("127."):
                listener = socket.create_server((found, machines.port)).detach()
                host = found
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise
        # The store closes the socket.
        return TCPStore(
            host, machines.port, is_master=True, wait_for_workers=False, master_listen_fd=listener
        )
    except (OSError, DistError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"{environment.MASTER_PORT}: must be a free port of this machine, got {machines.port} ({reason})"
        ) from error


def next_ticket(machines: Machines) -> tuple[SignedStore, Ticket, str]:
    """Wait for a stage on machine 0; return its store, the ticket and the name of this offer."""
    # Here: slow to import. TCPStore is documented, but not in __all__.
    from torch.distributed import DistError, TCPStore  # type: ignore[attr-defined]

    is_said = False
    while True:
        try:
            # TCPStore logs each failed attempt; this one does not.
            socket.create_connection((machines.address, machines.port), timeout=5).close()
            store = SignedStore(
                TCPStore(
                    machines.address,
                    machines.port,
                    is_master=False,
                    wait_for_workers=False,
                    timeout=timedelta(seconds=5),
                ),
                machines.key,
            )
            if store.has(_CALL):  # else a stage runs without this machine
                offer = uuid.uuid4().hex
                store.set(f"ready/{machines.index}", offer)
                return store, Ticket(**json.loads(store.get(f"ticket/{offer}"))), offer
        except UnsignedError:
            if not is_said:
                sys.stderr.write(
                    f"refused a ticket of {machines.address}:{machines.port} that is not signed with the key of "
                    f"{environment.MACHINES_KEY}\n"
                )
            is_said = True
        except (OSError, DistError, RuntimeError):
            pass  # no stage runs on machine 0
        time.sleep(1)


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
