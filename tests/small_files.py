"""What comes nearest to a full disk without a mount."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def small_files() -> Iterator[None]:
    """Inside, this process can write no file above 4 KiB, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
