"""Errors that a user can fix, with the exit code of the process.

A message names the file, key or row, the rule, the value and the next step. Any other exception is a bug: the process
ends with a traceback and exit code 1.
"""

import re
import shlex
from pathlib import Path

USER_INFO = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]{0,20})://"
    # a name and a password up to the host, or what cannot be a port and is therefore a password with special
    # characters; bounded, so that the time stays linear
    r"(?:[^\s/?#]*@|[^\s/?#@:\[]*:(?!\d*(?:[\s/?#.,;)'\"]|$)).{0,300}@)",
    re.IGNORECASE,
)
"""A URL's user or password. Some schemes have a plain name in its place, which `has_user_info` leaves out."""

_NAMED = ("abfs", "abfss", "wasb", "wasbs", "hdfs", "sftp", "ssh", "smb")
"""Schemes whose URLs name a container or an account before the host: `abfs://CONTAINER@ACCOUNT.dfs.core.windows.net`."""

_LONGEST_LINE = 2000


def install_command(extra: str) -> str:
    """Command that installs an extra from the clone: the name is free on PyPI, so anybody could register it."""
    clone = Path(__file__).parents[1]
    place = clone if (clone / "pyproject.toml").is_file() else "CLONE"
    return f"pip install -e {shlex.quote(f'{place}[{extra}]')}"


class ChunkGrpoError(Exception):
    """Base of the errors that are shown without a traceback.

    Messages quote values, so passwords in URLs are masked, and the middle of a very long line is left out.
    """

    exit_code: int = 1
    """Exit code of the process."""

    process: int | None = None
    """Number of the process in which it arose, if another one raises it too; None: this one."""

    def __init__(self, *arguments: object) -> None:
        """Make the message fit to be shown."""
        super().__init__(*(_fit(text) if isinstance(text, str) else text for text in arguments))


class ConfigError(ChunkGrpoError):
    """params.yaml, a preset or an argument is wrong."""

    exit_code = 2


class DataError(ChunkGrpoError):
    """An input or output is missing, unreadable, of the wrong kind, or cannot be written."""

    exit_code = 3


class RefusedError(DataError):
    """A scorer refuses to judge an image. Custom scorers return it in place of the image's value."""


class TransientError(ChunkGrpoError):
    """A temporary failure: the same command may succeed later.

    For example, the object store did not respond. 75 is EX_TEMPFAIL of sysexits.h.
    """

    exit_code = 75


class Stopped(BaseException):
    """A signal stopped the process (SIGTERM, SIGINT, SIGHUP). The same command resumes the work.

    Subclasses BaseException, like KeyboardInterrupt, so that `except Exception` cannot swallow a stop request.
    """

    exit_code = TransientError.exit_code


def one_line(error: BaseException) -> str:
    """The text of another library's error, to be quoted within a sentence."""
    return " ".join(str(error).split()).rstrip(".")


def masked(text: str) -> str:
    """The text with *** in place of users and passwords in URLs."""
    return USER_INFO.sub(lambda match: f"{match['scheme']}://***@" if _is_secret(match) else match[0], text)


def has_user_info(text: str) -> bool:
    """Whether a URL in the text has a user or password."""
    return any(map(_is_secret, USER_INFO.finditer(text)))


def _is_secret(match: re.Match[str]) -> bool:
    return match["scheme"].lower() not in _NAMED or ":" in match[0].partition("://")[2]


def _fit(message: str) -> str:
    lines = masked(message).split("\n")
    return "\n".join(
        line if len(line) <= _LONGEST_LINE else f"{line[: _LONGEST_LINE // 2]} ... {line[-_LONGEST_LINE // 2 :]}"
        for line in lines
    )
