"""The errors a user can mend, each with the exit code its process ends with.

A message names the file, key or row, the rule and the value, and says what to do next. Anything else that
goes wrong is a bug: it ends with a traceback and exit code 1.
"""


class ChunkGrpoError(Exception):
    """Base of the errors that are shown without a traceback.

    Attributes:
        exit_code: what the process exits with.
    """

    exit_code: int = 1


class ConfigError(ChunkGrpoError):
    """params.yaml, a preset or an argument is wrong."""

    exit_code = 2


class DataError(ChunkGrpoError):
    """An input or an output is missing, unreadable, of another kind, or cannot be written."""

    exit_code = 3


class RefusedError(DataError):
    """A scorer will not judge an image: a scorer of one's own returns it in the place of the image's number."""


class TransientError(ChunkGrpoError):
    """Nothing is wrong with the configuration or the data: the same command may succeed later.

    For example the object store did not answer. 75 is EX_TEMPFAIL of sysexits.h.
    """

    exit_code = 75


class Stopped(BaseException):
    """The process was told to end (SIGTERM, SIGINT, SIGHUP); the same command goes on.

    No Exception, as KeyboardInterrupt is none: where a library's errors are caught, to be told as those of a damaged
    file or to try again, a stop is none of them.
    """

    exit_code = TransientError.exit_code
