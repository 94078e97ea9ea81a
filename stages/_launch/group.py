"""Processes that end together, on this machine and on others."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from chunk_grpo import environment
from chunk_grpo.errors import ConfigError, DataError, TransientError
from chunk_grpo.stopping import STOP_SIGNALS, mute_lost_outputs
from stages._launch.machines import Link, Member, Outcome

FAIL_SECONDS = 5.0
"""Grace period for the other processes after one failed while no checkpoint is being saved."""

_POLL_SECONDS = 0.05
_SIGNALLED = 128  # added to the signal's number, as in a shell's exit codes
_EXPLAINED = (ConfigError.exit_code, DataError.exit_code)


class Group:
    """Processes that end together.

    The grace period before SIGKILL is the stop timeout after a stop request, after a process exited as stopped, and
    after a failure while process 0 saves a checkpoint. After any other failure it is FAIL_SECONDS.

    Attributes:
        is_interrupted: Whether a stop signal has arrived.
    """

    def __init__(self, saving: Path, seconds: float, total: int, first: int, link: Link | None) -> None:
        """Start no process yet.

        The file `saving` exists while process 0 saves a checkpoint; `seconds` is from a stop request to SIGKILL. Of
        `total` processes on all machines, this machine's begin at rank `first`. `link` is the exchange with the others;
        None: none.
        """
        self.is_interrupted = False
        self._processes: list[subprocess.Popen[bytes]] = []
        self._messages: list[Path | None] = []
        self._saving, self._seconds, self._total, self._first = saving, seconds, total, first
        self._link = link
        self._others: list[Member] = [] if link is None else list(link.members.values())
        self._stopped_at = float("inf")
        self._interrupts = 0
        self._late: list[int] = []

    def add(self, command: Sequence[str], variables: dict[str, str], messages: Path | None) -> None:
        """Start a process; terminate it at once if a stop was requested.

        `messages` is the file for its stderr; None: this process's stderr.
        """
        if messages is None:
            self._processes.append(subprocess.Popen(command, env=variables))
        else:
            with messages.open("wb") as stream:
                self._processes.append(subprocess.Popen(command, env=variables, stderr=stream))
        self._messages.append(messages)
        if self._is_stopped:
            self._processes[-1].terminate()

    @contextmanager
    def stopped_by_signals(self) -> Iterator[None]:
        """Forward stop signals to all processes; a second Ctrl-C kills them. On exit, kill those still running."""
        before = {
            number: signal.signal(number, self._on_signal)
            for number in STOP_SIGNALS
            if signal.getsignal(number) is not signal.SIG_IGN
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            for process in self._processes:
                process.kill()
                process.wait()

    def wait(self) -> Outcome:
        """Wait for all processes; after a stop or failure, kill the rest when the grace period is over."""
        first, failed_at = None, float("inf")
        while self._runs():
            self._follow_orders()
            if first is None and (failed := self._failed()):
                first, failed_at = failed[0], time.monotonic()
                self._report("failed", self._outcome(first))
            if time.monotonic() >= min(self._stopped_at, failed_at) + self._patience(first):
                break
            time.sleep(_POLL_SECONDS)
        self._late = [place for place, process in enumerate(self._processes) if process.poll() is None]
        for place in self._late:
            self._processes[place].kill()
            self._processes[place].wait()
        self._end_others()
        outcome = self._outcome(self._culprit(first))
        self._report("ended", outcome)
        return outcome

    def _runs(self) -> bool:
        """Whether processes run: of this machine, and of those that follow it."""
        local = any(process.poll() is None for process in self._processes)
        return local or (self._leads and not all(member.has_ended for member in self._others))

    @property
    def _all(self) -> list[subprocess.Popen[bytes] | Member]:
        """Processes of this machine, then other machines."""
        return [*self._processes, *self._others]

    @property
    def _leads(self) -> bool:
        return self._first == 0

    def _follow_orders(self) -> None:
        """Stop or end as machine 0 asks."""
        order = "" if self._link is None else self._link.order
        if order == "kill":
            self._seconds = 0
        if order and not self._is_stopped:
            self._stop()

    def _end_others(self) -> None:
        """End the processes of the machines that follow, and wait for the outcome."""
        if self._leads:
            for member in self._others:
                if not member.has_ended:
                    member.kill()
                member.wait()

    def _patience(self, first: int | None) -> float:
        """Grace period in seconds, from a stop request or the first failure to SIGKILL."""
        if first is not None and not self._is_stopped and self._is_lost(first):
            return self._seconds if self._saving.exists() else FAIL_SECONDS
        was_stopped = first is None or self._exit_code(first) == TransientError.exit_code
        return self._seconds if was_stopped or self._is_stopped or self._saving.exists() else FAIL_SECONDS

    def _culprit(self, first: int | None) -> int | None:
        """The process or machine whose end explains the others', or None if all succeeded.

        It is the first that failed, unless that one may only have noticed another one's end.
        """
        failed = [one for one in self._failed() if one not in self._late]
        if first is None or self._is_stopped or self._exit_code(first) in _EXPLAINED:
            return first if first is not None else next(iter(self._failed()), None)
        for explains in (
            lambda one: self._exit_code(one) in _EXPLAINED,
            self._is_lost,
            lambda one: self._exit_code(one) > _SIGNALLED,
        ):
            if found := [one for one in failed if explains(one)]:
                return found[0]
        return first

    def _outcome(self, culprit: int | None) -> Outcome:
        if culprit is None:
            return Outcome(0)
        account = self._account(culprit)
        if account and culprit < len(self._processes) and (messages := self._messages[culprit]):
            account += messages.read_text(encoding="utf-8", errors="replace")
        return Outcome(self._exit_code(culprit), account)

    def _report(self, what: str, outcome: Outcome) -> None:
        if self._link is not None:
            self._link.report(what, outcome)

    def _is_lost(self, one: int) -> bool:
        return one >= len(self._processes) and self._others[one - len(self._processes)].is_lost

    def _exit_code(self, one: int) -> int:
        """Exit code, as a shell reports it; 75 if a stop signal or a second Ctrl-C ended the process."""
        code = self._all[one].poll() or 0
        if self._interrupts > 1 or (self._is_stopped and -code in STOP_SIGNALS):
            return TransientError.exit_code
        return _SIGNALLED - code if code < 0 else code

    def _account(self, failed: int) -> str:
        """Lines on how a process or machine ended, or "" if the messages of process 0 already say it."""
        code = self._exit_code(failed)
        if failed >= len(self._processes):
            return self._others[failed - len(self._processes)].account
        who = f"process {self._first + failed} of {self._total}"
        if self._is_stopped and code == self._exit_code(0) == TransientError.exit_code:
            return ""
        if self._is_stopped and failed in self._late:
            late = f"{self._seconds:.0f} s after the stop ({environment.STOP_SECONDS})"
            return f"{who} was killed {late}: what it was saving is lost\n"
        if code - _SIGNALLED in set(signal.Signals):
            return f"{who} was ended by {signal.Signals(code - _SIGNALLED).name}\n"
        return f"{who} ended with exit code {code}:\n" if self._first + failed > 0 else ""

    def _failed(self) -> list[int]:
        """Places of what has failed, in the order of `_all`."""
        return [one for one, each in enumerate(self._all) if each.poll()]

    @property
    def _is_stopped(self) -> bool:
        return self._stopped_at < float("inf")

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        mute_lost_outputs()
        self.is_interrupted = True
        self._interrupts += number == signal.SIGINT
        if self._interrupts > 1:
            self._seconds = 0
        self._stop()

    def _stop(self) -> None:
        if not self._is_stopped:
            self._stopped_at = time.monotonic()
        for each in self._all if self._leads else self._processes:
            each.terminate()
