"""Outcome of a stage, and errors of stages, of DVC's cache and of its remote."""

from __future__ import annotations

import re
import signal
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast, get_args

from chunk_grpo.orchestration.commands import Log

Outcome: TypeAlias = Literal["ran", "restored", "pulled", "unchanged"]
"""`ran`: the command ran; `restored`: outputs came from the run cache; `pulled`: outputs came from the remote;
`unchanged`: outputs were already in the workspace."""

_TAIL_LINES = 20
"""Number of log lines in an error message."""

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
    """Wall time including DVC's own, without DVC's start."""
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

    def __init__(self, stage: str, code: int, last_lines: Sequence[str]) -> None:
        # A shell that waits for its command, rather than become it, exits with 128 plus the number of a signal.
        self.stage, self.exit_code = stage, 128 - code if code - 128 in set(signal.Signals) else code
        super().__init__("\n".join([f"stage {stage} {_exit_text(self.exit_code)}", *last_lines]))


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
    """The log of one DVC command, line by line.

    Attributes:
        lines: Last log lines.
        troubles: Last log lines on failed or damaged transfers; DVC continues after these and may exit with 0.
    """

    def __init__(self, log: Log) -> None:
        """Pass every line on to `log`."""
        self.lines: deque[str] = deque(maxlen=_TAIL_LINES)
        self.troubles: deque[str] = deque(maxlen=_TAIL_LINES)
        self._log = log

    def add(self, line: str) -> None:
        """Keep a line."""
        is_trouble = _NOT_THERE in line or _DAMAGED.search(line)
        (self.troubles if is_trouble else self.lines).append(line)
        self._log(line)

    def error(self, command: str, code: int) -> RemoteError:
        """The error of a failed command."""
        return RemoteError(command, code, [*self.lines, *self.troubles])


def _exit_text(code: int) -> str:
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    meaning = _EXIT_CODES.get(code)
    return f"failed with exit code {code}" + (f" ({meaning})" if meaning else "")
