"""Which errors of a scorer another try may mend: one rule, in whatever process or interpreter they were raised.

An error is judged by what `workers.lines.facts_of` notes of it, which crosses between processes. Libraries are known by
the names of their errors, so that none needs to be installed.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any

from chunk_grpo.errors import TransientError
from chunk_grpo.scorers.workers import lines

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
"""Package and class: the network was away, slow or cut off."""

_LASTING = {
    "httpx.UnsupportedProtocol",  # a URL without http:// or https://
    "aiohttp.ClientConnectorCertificateError",
    "requests.SSLError",
}
"""Of those: the address or a certificate is wrong."""

_WITH_STATUS = {
    *("httpx.HTTPStatusError", "openai.APIStatusError", "aiohttp.ClientResponseError", "requests.HTTPError"),
    "urllib.HTTPError",
}
"""The server answered: its HTTP status decides."""

_STATUSES = {408, 409, 425, 429}
"""Time-out, conflict, too early and too many requests; from 500 on it is the server's fault."""

_OF_THE_SYSTEM = {
    *(errno.EAGAIN, errno.EHOSTUNREACH, errno.EIO, errno.ENETDOWN, errno.ENETUNREACH, errno.ESTALE),
}
"""The network, or a file system behind one, is away."""


def may_pass(error: BaseException) -> bool:
    """Whether another try may end otherwise: not when a file is missing, or a request is refused."""
    return isinstance(error, TransientError) or facts_may_pass(lines.facts_of(error))


def facts_may_pass(facts: Mapping[str, Any]) -> bool:
    """The same of an error in another process.

    Args:
        facts: What `lines.facts_of` noted of it; what a worker of an older version does not note counts as nothing.
    """
    kinds = {_short(name) for name in facts.get("classes", [])}
    if kinds & _WITH_STATUS:
        status = facts.get("status")
        return isinstance(status, int) and (status in _STATUSES or status >= 500)
    if kinds & _LASTING:
        return False
    return bool(kinds & _PASSING) or ("builtins.OSError" in kinds and facts.get("errno") in _OF_THE_SYSTEM)


def _short(name: str) -> str:
    """Package and class of a class's full name: requests.ConnectionError of requests.exceptions.ConnectionError."""
    return f"{name.partition('.')[0]}.{name.rpartition('.')[2]}"
