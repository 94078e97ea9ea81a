"""Prefect's server behind a `Door`: the server of `make serve`, compose and Kubernetes."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from chunk_grpo.orchestration.served import LOOPBACK, host_name

Message = MutableMapping[str, Any]
App = Callable[[Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]


class Door:
    """ASGI layer that refuses requests (HTTP and WebSocket) which a page of another site makes.

    `origins` are allowed besides the server's own, such as https://prefect.example.org. A server that listens on the
    loopback interface only has no other names than that one's and those in `origins`: a page whose name was made to
    point here is refused.
    """

    def __init__(self, app: App, origins: Collection[str] = (), loopback: bool = True) -> None:
        self._app, self._origins, self._loopback = app, set(origins), loopback
        self._names = {*LOOPBACK, *(urlsplit(origin).hostname for origin in origins)} - {None}

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        """Pass on what is allowed; answer anything else with 403, or close it."""
        why = self._refusal(scope["headers"]) if scope["type"] in ("http", "websocket") else None
        if why is None:
            await self._app(scope, receive, _unframed(send))
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": why})
        else:
            head = [(b"content-type", b"text/plain; charset=utf-8")]
            await send({"type": "http.response.start", "status": 403, "headers": head})
            await send({"type": "http.response.body", "body": f"{why}\n".encode()})

    def _refusal(self, headers: Collection[tuple[bytes, bytes]]) -> str | None:
        def values(name: bytes) -> list[str]:
            return [value.decode("latin-1").lower() for key, value in headers if key.lower() == name]

        hosts = values(b"host")
        if len(hosts) != 1 or (self._loopback and host_name(hosts[0]) not in self._names):
            return f"Host must be a name of this server, got {', '.join(hosts)}; see docs/deploy.md for a proxy"
        foreign = [o for o in values(b"origin") if o.partition("://")[2] != hosts[0] and o not in self._origins]
        return f"Origin must be {hosts[0]}, got {', '.join(foreign)}; see docs/deploy.md" if foreign else None


def _unframed(send: Callable[[Message], Awaitable[None]]) -> Callable[[Message], Awaitable[None]]:
    """Forbid other pages to show the answer in a frame, in which a click could be stolen."""

    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), (b"x-frame-options", b"DENY")]
        await send(message)

    return wrapped


def main() -> None:
    """Serve until SIGINT or SIGTERM, as `prefect server start` does, with a door before the application."""
    import uvicorn  # here: Prefect's server takes seconds to import
    from prefect.server.api.server import create_app
    from prefect.settings import get_current_settings

    settings = get_current_settings().server
    parser = argparse.ArgumentParser(prog="python -m infra.server", description=__doc__)
    parser.add_argument("--host", default=settings.api.host)
    parser.add_argument("--port", type=int, default=settings.api.port)
    options = parser.parse_args()
    listed = [origin.strip() for origin in settings.api.cors_allowed_origins.lower().split(",")]
    origins = [origin for origin in listed if origin not in ("", "*")]
    uvicorn.run(
        Door(create_app(final=True), origins, loopback=options.host in LOOPBACK),
        host=options.host,
        port=options.port,
        timeout_keep_alive=settings.api.keepalive_timeout,
        ws_ping_interval=settings.api.websocket_ping_interval,
        ws_ping_timeout=settings.api.websocket_ping_timeout,
        log_level=settings.logging_level.lower(),
    )


if __name__ == "__main__":
    main()
