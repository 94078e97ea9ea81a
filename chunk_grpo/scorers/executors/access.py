"""Who may ask a scoring server: this machine, or whoever has the token, which stands in an environment variable."""

from __future__ import annotations

import hmac
import ipaddress
import os

from chunk_grpo.errors import ConfigError


def read_token(option: str, variable: str | None) -> str | None:
    """The token in an environment variable.

    Args:
        option: What names the variable, for messages.
        variable: The variable's name; None: no token.

    Returns:
        The token; None if there is no variable.

    Raises:
        ConfigError: The variable is not set, or holds what no HTTP header can; the message does not quote it.
    """
    if variable is None:
        return None
    token = os.environ.get(variable, "")
    if not token:
        raise ConfigError(f"{option}: the environment variable {variable} is not set or empty")
    if not all("!" <= character <= "~" for character in token):
        raise ConfigError(
            f"{option}: the token in {variable} must be of visible ASCII characters, without spaces or line ends"
        )
    return token


def is_allowed(authorization: str, token: str | None) -> bool:
    """Whether a request's Authorization header has the token; compared in the same time whatever it holds."""
    if token is None:
        return True
    return hmac.compare_digest(authorization.encode("utf-8"), f"Bearer {token}".encode())


def is_loopback(host: str) -> bool:
    """Whether an address or a name is reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:  # another name
        return False
