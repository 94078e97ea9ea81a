"""Warnings of diffusers and transformers about prompts that are cut off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_warnings_of_cut_prompts() -> Iterator[None]:
    """Encode without the libraries' warnings: they print every prompt that a text encoder truncates.

    For callers that have counted the tokens (`families.tokens`) and reported such prompts by their lines.
    """
    from diffusers.utils import logging as diffusers_log  # takes seconds
    from transformers.utils import logging as transformers_log

    before = [(log, log.get_verbosity()) for log in (diffusers_log, transformers_log)]
    for log, _ in before:
        log.set_verbosity_error()
    try:
        yield
    finally:
        for log, verbosity in before:
            log.set_verbosity(verbosity)
