"""What became of a stage: in DVC's log lines, in exit codes, as text between flow runs."""

from __future__ import annotations

import re
import signal
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast, get_args

from chunk_grpo.environment import RUN_MARKER
from chunk_grpo.orchestration.commands import Log

Outcome: TypeAlias = Literal["ran", "restored", "pulled", "unchanged"]
"""`ran`: the command was executed; `restored`: outputs from the run cache; `pulled`: outputs from the remote;
`unchanged`: outputs already in the workspace."""

_TAIL_LINES = 20
"""How many lines of a log an error message has."""

_LINES: tuple[tuple[str, Outcome], ...] = (
    (r"Running stage '(.+)':", "ran"),
    (r"Stage '(.+)' is cached - skipping run.*", "restored"),
    (r"Pulling data for stage: '(.+)'", "pulled"),
    (r"Stage '(.+)' didn't change, skipping", "unchanged"),
    (r"Verifying outputs in frozen stage: '(.+)'", "unchanged"),
)
_WORK_ENDS = re.compile(
    r"Stage '.+' didn't change, skipping|(?:Generating|Updating) lock file '.+'|.*exited with -?\d+"
)
"""Lines at the end of DVC's work on a stage; the other ones of `_LINES` come before copying, pulling or running."""

_EXIT_CODES = {2: "bad configuration", 3: "bad input", 75: "worth trying again"}
_NO_USE = re.compile(
    r"AccessDenied|Access Denied|Forbidden|InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken|RequestTimeTooSkewed"
    r"|NoSuchBucket|bucket does not exist|locate credentials|Partial credentials|config profile",
    re.IGNORECASE,
)
_NOT_THERE = "failed to transfer"
_DAMAGED = re.compile(r"corrupted cache file '.*(files/md5/[^']+|runs/[0-9a-f]{2}/[^']+)'")


@dataclass(frozen=True)
class StageOutcome:
    """What became of one stage.

    Attributes:
        stage: its name.
        outcome: how its outputs came about.
        seconds: wall time, DVC's own part included; of a stage that was not run, without DVC's start.
        size: of its outputs, in bytes.
    """

    stage: str
    outcome: Outcome
    seconds: float
    size: int

    def __str__(self) -> str:
        """How an outcome gets from one flow run to another without stored results."""
        return f"{self.outcome} in {self.seconds:.1f} s, {self.size} bytes"

    @classmethod
    def parse(cls, stage: str, text: str) -> StageOutcome:
        """The inverse of `str()`.

        Raises:
            ValueError: `text` is not the text of an outcome.
        """
        match = re.fullmatch(rf"({'|'.join(get_args(Outcome))}) in (\d+\.\d) s, (\d+) bytes", text)
        if match is None:
            raise ValueError(f"stage {stage}: expected 'ran in 1.0 s, 2 bytes' or the like, got {text!r}")
        return cls(stage, cast("Outcome", match[1]), float(match[2]), int(match[3]))


class StageFailed(Exception):  # noqa: N818  (the contract between flows and stages names it so)
    """A stage ended with an error.

    Attributes:
        stage: its name.
        exit_code: what its command exited with, negative for a signal; DVC's own code when none was run.
    """

    def __init__(self, stage: str, dvc_code: int, last_lines: Sequence[str]) -> None:
        self.stage, self.exit_code = stage, _exit_code(last_lines, dvc_code)
        super().__init__("\n".join([f"stage {stage} {_exit_text(self.exit_code)}", *last_lines]))


class OutcomeUnclearError(RuntimeError):
    """DVC's log and the marker file disagree on whether a stage ran: its outputs can not be trusted."""


class RemoteError(RuntimeError):
    """DVC could not read or write its cache or its remote.

    Attributes:
        may_pass: whether another try may help: not where access is refused or the bucket is missing.
    """

    def __init__(self, command: str, code: int, last_lines: Sequence[str]) -> None:
        text = "\n".join(last_lines)
        self.may_pass = not _NO_USE.search(text)
        damaged = sorted(set(_DAMAGED.findall(text)))
        if damaged and _NOT_THERE not in text:
            advice = (
                f"Damaged in the remote, or on the way: {', '.join(damaged)}. When it stays so, delete this in the "
                "remote (`dvc remote list` has its URL): the next run makes it again."
            )
        elif self.may_pass:
            advice = "The next run goes on from what has arrived."
        else:
            advice = "Check the remote's URL (`dvc remote list`) and the credentials of this worker."
        super().__init__(f"{command} exited with {code}. {advice}\n{text}")


class DvcLog:
    """What DVC says while it works, and what that means.

    Attributes:
        lines: the last ones.
        troubles: the last ones on objects that did not arrive whole: DVC goes on then, and may even exit with 0.
        missing: stages that it would run, or has run.
    """

    def __init__(self, log: Log) -> None:
        """Hand every line on to `log`."""
        self.lines: deque[str] = deque(maxlen=_TAIL_LINES)
        self.troubles: deque[str] = deque(maxlen=_TAIL_LINES)
        self.missing: set[str] = set()
        self._log = log
        self._found: dict[str, Outcome] = {}
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._at_work: str | None = None
        self._start = time.monotonic()
        self._counted: float | None = None  # up to when time belongs to a stage; None while DVC starts

    def add(self, line: str) -> None:
        """Take note of a line. Of several that are about one stage the last one holds."""
        is_trouble = _NOT_THERE in line or _DAMAGED.search(line)
        (self.troubles if is_trouble else self.lines).append(line)
        named = None
        for pattern, outcome in _LINES:
            if match := re.fullmatch(pattern, line):
                named = match[1]
                self._found[named] = outcome
                if outcome == "ran":
                    self.missing.add(named)
        self._count(named, ends=bool(_WORK_ENDS.fullmatch(line)))
        self._log(line)

    def _count(self, named: str | None, *, ends: bool) -> None:
        """Give the time since the line before to the stage that DVC was at work on.

        That is the last one that was named, unless its work had ended; then it is the next one that is named. DVC is
        silent between pulling or copying the outputs of one stage and looking at the next one, which takes less: both
        count for the first one. Before the first line with a name it collects the stages: that counts for none.
        """
        now, stage = time.monotonic(), self._at_work or named
        if stage is not None:
            self._seconds[stage] += now - (now if self._counted is None else self._counted)
            self._counted = now
        self._at_work = None if ends else named or self._at_work

    def restored(self, code: int, sizes: Mapping[str, int], command: str) -> dict[str, StageOutcome]:
        """The stages that are up to date after a command which could run none.

        Args:
            code: Its exit code.
            sizes: Of the stages' outputs, in bytes.
            command: What to call it in an error.

        Raises:
            RemoteError: Something else went wrong than that stages would have to run.
        """
        ends = " ".join(line for line in self.lines if "failed to reproduce" in line)
        failed = set(re.findall(r"'(.+?)'", ends))
        if code != 0 and (not self.missing or failed - self.missing):
            raise self.error(command, code)
        return {
            name: StageOutcome(name, outcome, self._seconds[name], sizes.get(name, 0))
            for name, outcome in self._found.items()
            if name not in self.missing
        }

    def ran(self, stage: str, code: int, sizes: Mapping[str, int], says_so: bool) -> StageOutcome:
        """The outcome of the one stage that a command was to run.

        Args:
            stage: Its name.
            code: The command's exit code.
            sizes: Of the stages' outputs, in bytes.
            says_so: Whether the stage itself says that it ran.

        Raises:
            StageFailed: It failed.
            OutcomeUnclearError: DVC says that it ran and the stage does not, or the other way round.
        """
        if code != 0:
            raise StageFailed(stage, code, tuple(self.lines))
        outcome = self._found.get(stage)
        if outcome is None or (outcome == "ran") != says_so:
            raise OutcomeUnclearError(
                f"stage {stage}: DVC's log says {outcome or 'nothing'}, but the stage "
                f"{'touched' if says_so else 'did not touch'} ${RUN_MARKER}, which is to be its first act"
            )
        return StageOutcome(stage, outcome, time.monotonic() - self._start, sizes.get(stage, 0))

    def error(self, command: str, code: int) -> RemoteError:
        """That the command failed."""
        return RemoteError(command, code, [*self.lines, *self.troubles])


def _exit_code(lines: Iterable[str], dvc_code: int) -> int:
    """The command's exit code, which DVC only prints: it exits with 255 itself.

    DVC starts the command through $SHELL. One that becomes the command ends by the signal that ended it, -9 here;
    one that waits for it exits with 128 plus the signal's number instead.
    """
    codes = [int(match[1]) for line in lines if (match := re.search(r"exited with (-?\d+)$", line))]
    code = codes[-1] if codes else dvc_code
    return 128 - code if code - 128 in set(signal.Signals) else code


def _exit_text(code: int) -> str:
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    meaning = _EXIT_CODES.get(code)
    return f"failed with exit code {code}" + (f" ({meaning})" if meaning else "")
