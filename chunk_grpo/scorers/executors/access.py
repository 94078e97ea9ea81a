"""The token of a scoring server, in an environment variable."""

from __future__ import annotations

import os

from chunk_grpo.errors import ConfigError


def read_token(option: str, variable: str | None) -> str | None:
    """Read the token from an environment variable.

    Args:
        option: Option or key that names the variable, for messages.
        variable: Name of the variable; None: no token.

    Returns:
        The token; None if `variable` is None.

    Raises:
        ConfigError: The variable is not set, or its value is not allowed in an HTTP header. The message does not quote
            the value.
    """
    if variable is None:
        return None
    token = os.environ.get(variable, "")
    if not token:
        raise ConfigError(f"{option}: the environment variable {variable} is not set or empty")
    if not all("!" <= character <= "~" for character in token):
        raise ConfigError(
            f"{option}: the token in {variable} must consist of visible ASCII characters, without spaces or line ends"
        )
    return token
