"""Outcome of a stage: parsed from DVC's log lines and exit codes, and passed between flow runs as text."""

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
"""`ran`: the command ran; `restored`: outputs came from the run cache; `pulled`: outputs came from the remote;
`unchanged`: outputs were already in the workspace."""

_TAIL_LINES = 20
"""Number of log lines in an error message."""

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
"""Lines that end DVC's work on a stage. The other lines of `_LINES` come before copying, pulling or running."""

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
    """Outcome of one stage."""

    stage: str
    """Name of the stage."""
    outcome: Outcome
    """Source of its outputs."""
    seconds: float
    """Wall time including DVC's own; without DVC's start if the stage was not run."""
    size: int
    """Size of its outputs in bytes."""

    def __str__(self) -> str:
        """Text by which an outcome is passed to another flow run, since flow results are not persisted."""
        return f"{self.outcome} in {self.seconds:.1f} s, {self.size} bytes"

    @classmethod
    def parse(cls, stage: str, text: str) -> StageOutcome:
        """The inverse of `str()`; ValueError if `text` is not the text of an outcome."""
        match = re.fullmatch(rf"({'|'.join(get_args(Outcome))}) in (\d+\.\d) s, (\d+) bytes", text)
        if match is None:
            raise ValueError(f"stage {stage}: expected 'ran in 1.0 s, 2 bytes' or the like, got {text!r}")
        return cls(stage, cast("Outcome", match[1]), float(match[2]), int(match[3]))


class StageFailed(Exception):  # noqa: N818  (the contract between flows and stages names it so)
    """A stage ended with an error.

    Attributes:
        stage: Name of the stage.
        exit_code: Exit code of its command, negative for a signal; DVC's own exit code if no command ran.
    """

    def __init__(self, stage: str, dvc_code: int, last_lines: Sequence[str]) -> None:
        self.stage, self.exit_code = stage, _exit_code(last_lines, dvc_code)
        super().__init__("\n".join([f"stage {stage} {_exit_text(self.exit_code)}", *last_lines]))


class OutcomeUnclearError(RuntimeError):
    """DVC's log and the marker file disagree on whether a stage ran: its outputs cannot be trusted."""


class RemoteError(RuntimeError):
    """DVC could not read or write its cache or its remote.

    Attributes:
        may_pass: Whether a retry may help; False if access is refused or the bucket is missing.
    """

    def __init__(self, command: str, code: int, last_lines: Sequence[str]) -> None:
        text = "\n".join(last_lines)
        self.may_pass = not _NO_USE.search(text)
        damaged = sorted(set(_DAMAGED.findall(text)))
        if damaged and _NOT_THERE not in text:
            advice = (
                f"Damaged in the remote, or in transfer: {', '.join(damaged)}. If this happens again, delete it from "
                "the remote (`dvc remote list` shows its URL); the next run makes it again."
            )
        elif self.may_pass:
            advice = "The next run goes on from what has arrived."
        else:
            advice = "Check the remote's URL (`dvc remote list`) and the credentials of this worker."
        super().__init__(f"{command} exited with {code}. {advice}\n{text}")


class DvcLog:
    """Parser of the log lines of one DVC command.

    Attributes:
        lines: Last log lines.
        troubles: Last log lines on failed or damaged transfers; DVC continues after these and may exit with 0.
        missing: Stages that DVC would run, or has run.
    """

    def __init__(self, log: Log) -> None:
        """Pass every line on to `log`."""
        self.lines: deque[str] = deque(maxlen=_TAIL_LINES)
        self.troubles: deque[str] = deque(maxlen=_TAIL_LINES)
        self.missing: set[str] = set()
        self._log = log
        self._found: dict[str, Outcome] = {}
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._at_work: str | None = None
        self._start = time.monotonic()
        self._counted: float | None = (
            None  # time up to which seconds are attributed to stages; None while DVC starts
        )

    def add(self, line: str) -> None:
        """Parse a log line. The last line about a stage wins."""
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
        """Attribute the time since the previous line to the stage that DVC was working on.

        That is the last stage named, or, if its work had ended, the next stage named. DVC logs nothing between pulling
        or copying the outputs of a stage and checking the next one; the check is shorter, so both count for the first
        stage. The time before the first named stage, in which DVC collects the stages, counts for none.
        """
        now, stage = time.monotonic(), self._at_work or named
        if stage is not None:
            self._seconds[stage] += now - (now if self._counted is None else self._counted)
            self._counted = now
        self._at_work = None if ends else named or self._at_work

    def restored(self, code: int, sizes: Mapping[str, int], command: str) -> dict[str, StageOutcome]:
        """The stages that are up to date after a command that cannot run stages.

        `sizes` are the stages' outputs in bytes. RemoteError, which names the command, if it failed for another reason
        than stages that would have to run.
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

    def ran(self, stage: str, code: int, sizes: Mapping[str, int], touched_marker: bool) -> StageOutcome:
        """The outcome of a command that runs one stage.

        `sizes` are the stages' outputs in bytes. StageFailed if the command failed; OutcomeUnclearError if DVC's log
        and the marker file disagree on whether the stage ran.
        """
        if code != 0:
            raise StageFailed(stage, code, tuple(self.lines))
        outcome = self._found.get(stage)
        if outcome is None or (outcome == "ran") != touched_marker:
            raise OutcomeUnclearError(
                f"stage {stage}: DVC's log says {outcome or 'nothing'}, but the stage "
                f"{'touched' if touched_marker else 'did not touch'} ${RUN_MARKER}, which every stage touches first"
            )
        return StageOutcome(stage, outcome, time.monotonic() - self._start, sizes.get(stage, 0))

    def error(self, command: str, code: int) -> RemoteError:
        """The error of a failed command."""
        return RemoteError(command, code, [*self.lines, *self.troubles])


def _exit_code(lines: Iterable[str], dvc_code: int) -> int:
    """Exit code of the stage's command, read from the log: DVC itself exits with 255.

    DVC starts the command through $SHELL. If the shell execs the command, a signal shows as a negative number (-9); if
    the shell waits for it, as 128 plus the signal's number.
    """
    codes = [int(match[1]) for line in lines if (match := re.search(r"exited with (-?\d+)$", line))]
    code = codes[-1] if codes else dvc_code
    return 128 - code if code - 128 in set(signal.Signals) else code


def _exit_text(code: int) -> str:
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    meaning = _EXIT_CODES.get(code)
    return f"failed with exit code {code}" + (f" ({meaning})" if meaning else "")
