"""Which scorer errors a retry may fix: one rule for all processes and interpreters.

The rule reads the output of `worker_protocol.facts_of`, which workers send with an error. It identifies errors of
libraries by class name, so no library needs to be installed.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any

from chunk_grpo.errors import TransientError
from chunk_grpo.scorers.workers.worker_protocol import facts_of

_PASSING = {
    *("builtins.ConnectionError", "builtins.TimeoutError", "socket.gaierror"),
    *("asyncio.TimeoutError", "concurrent.TimeoutError"),  # of Python's own kind from 3.11 on
    *("http.IncompleteRead", "urllib.URLError"),
    "httpx.TransportError",
    "openai.APIConnectionError",
    *("aiohttp.ClientConnectionError", "aiohttp.ClientPayloadError"),
    *("requests.ConnectionError", "requests.Timeout", "requests.ChunkedEncodingError"),
    *("urllib3.TimeoutError", "urllib3.NewConnectionError", "urllib3.ProtocolError"),
}
"""Package and class of errors that may pass: the network was unreachable, slow or cut off."""

_LASTING = {
    "httpx.UnsupportedProtocol",  # a URL without http:// or https://
    "aiohttp.ClientConnectorCertificateError",
    "requests.SSLError",
}
"""Subclasses of `_PASSING` that do not pass: the address or a certificate is wrong."""

_WITH_STATUS = {
    *("httpx.HTTPStatusError", "openai.APIStatusError", "aiohttp.ClientResponseError", "requests.HTTPError"),
    "urllib.HTTPError",
}
"""Errors of a server that answered: the HTTP status decides."""

_STATUSES = {408, 409, 425, 429}
"""HTTP statuses that may pass: time-out, conflict, too early, too many requests. All from 500 on may pass too."""

_OF_THE_SYSTEM = {
    *(errno.EAGAIN, errno.EHOSTUNREACH, errno.EIO, errno.ENETDOWN, errno.ENETUNREACH, errno.ESTALE),
}
"""Error numbers that may pass: the network or a network file system is unavailable."""


def may_pass(error: BaseException) -> bool:
    """Whether a retry may succeed. False for, among others, a missing file or a refused request."""
    return isinstance(error, TransientError) or facts_may_pass(facts_of(error))


def facts_may_pass(facts: Mapping[str, Any]) -> bool:
    """`may_pass` for an error in another process.

    Args:
        facts: Output of `facts_of`. Keys that an older worker does not send count as empty.
    """
    kinds = {_short(name) for name in facts.get("classes", [])}
    if kinds & _WITH_STATUS:
        status = facts.get("status")
        return isinstance(status, int) and (status in _STATUSES or status >= 500)
    if kinds & _LASTING:
        return False
    return bool(kinds & _PASSING) or ("builtins.OSError" in kinds and facts.get("errno") in _OF_THE_SYSTEM)


def _short(name: str) -> str:
    """Package and class, without modules: requests.ConnectionError for requests.exceptions.ConnectionError."""
    return f"{name.partition('.')[0]}.{name.rpartition('.')[2]}"
