"""What commands in the folder of `make serve` need to know of it: its port, and the string that its server asks for.

`setup_environment` is a plugin of Prefect (pyproject.toml names it, prefect.toml switches it on). Prefect calls it when
it is imported, so `prefect deployment run` and `chunk-grpo setup` log in by themselves.
"""

from __future__ import annotations

import os
import re
import secrets
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

from pluggy import HookimplMarker

from chunk_grpo.errors import ConfigError

AUTH = "auth"
"""File in PREFECT_HOME with the string, USER:PASSWORD; for its owner alone."""
PORT = "serve.lock"
"""File in PREFECT_HOME, locked while `make serve` runs; it holds the server's port then, and nothing otherwise."""
OUR_STRING = "PREFECT_API_AUTH_STRING"
"""Environment variable from which Prefect's clients take the string."""
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


@HookimplMarker("prefect-experimental")  # the project name of Prefect's plugins
def setup_environment(*, ctx: Any) -> SimpleNamespace | None:
    """Give the string to clients of the server of `make serve`, and of no other server."""
    home = Path(os.environ.get("PREFECT_HOME") or ".prefect")
    with suppress(OSError, ValueError):  # no server was started here; the URL is not one
        url = urlsplit(ctx.api_url or "")
        if (
            OUR_STRING not in os.environ
            and url.hostname in LOOPBACK
            and str(url.port) == (home / PORT).read_text(encoding="utf-8").strip()
        ):
            string = (home / AUTH).read_text(encoding="utf-8").strip()
            return SimpleNamespace(env={OUR_STRING: string}, note=None, required=False)
    return None


def host_name(header: str) -> str | None:
    """The name in a Host header, in lower case and without the port; None if it is not one."""
    found = re.fullmatch(r"(?:\[([0-9a-f:.]+)]|([0-9a-z._-]+))(?::[0-9]+)?", header.lower())
    return found and (found[1] or found[2])


def new_string() -> str:
    """A user, and a password that nobody can guess."""
    return f"admin:{secrets.token_urlsafe(24)}"


def kept_string(home: Path) -> tuple[str, bool]:
    """The string of a server in its PREFECT_HOME, which exists, and whether it was made now.

    One that others may know, or that is malformed, is refused.
    """
    file = home / AUTH
    try:
        file.touch(mode=0o600, exist_ok=False)
        string = new_string()
        file.write_text(f"{string}\n", encoding="utf-8")
        return string, True
    except FileExistsError:
        pass
    string, found = file.read_text(encoding="utf-8", errors="replace").strip(), file.stat()
    if found.st_mode & 0o077 or found.st_uid != os.getuid():
        raise ConfigError(
            f"{file}: must be yours, with mode 0600, got user {found.st_uid} and mode {found.st_mode & 0o777:04o}: "
            "others may know the string; remove the file, and the next start makes a new one"
        )
    if not (string.isascii() and string.isprintable() and ":" in string and " " not in string):
        raise ConfigError(
            f"{file}: must hold USER:PASSWORD, one line of ASCII without spaces; remove the file, and the next start "
            "makes a new one"
        )
    return string, False
