"""Errors that a user can fix, with the exit code of the process.

A message names the file, key or row, the rule, the value and the next step. Any other exception is a bug: the process
ends with a traceback and exit code 1.
"""


class ChunkGrpoError(Exception):
    """Base of the errors that are shown without a traceback.

    Attributes:
        exit_code: Exit code of the process.
    """

    exit_code: int = 1


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
