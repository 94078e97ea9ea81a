"""The layer before the Prefect server: who gets in, by the headers Host and Origin."""

import asyncio
from typing import Any

import pytest

from infra.server import Door

HOST, PORT = "127.0.0.1:4200", "http://127.0.0.1:4200"
PROXY = "https://prefect.example.org"


def answer(kind: str, headers: list[tuple[str, str]], **options: Any) -> list[dict[str, Any]]:
    """What is sent to a client; the application behind the door sends 200, or accepts."""
    sent: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        begin = {"type": "http.response.start", "status": 200, "headers": []}
        await send(begin if scope["type"] == "http" else {"type": "websocket.accept"})

    async def send(message: Any) -> None:
        sent.append(message)

    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    asyncio.run(Door(app, **options)({"type": kind, "headers": raw}, None, send))
    return sent


def gets_in(kind: str, headers: list[tuple[str, str]], **options: Any) -> bool:
    """Whether the application was reached; what does not reach it is refused with 403, or closed."""
    first, *_ = answer(kind, headers, **options)
    if first["type"] in ("websocket.accept", "websocket.close"):
        return first["type"] == "websocket.accept"
    assert first["status"] in (200, 403)
    return first["status"] == 200


@pytest.mark.parametrize("kind", ["http", "websocket"])
@pytest.mark.parametrize(
    ("headers", "let_in"),
    [
        ([("host", HOST)], True),  # prefect's own commands send no Origin
        ([("host", HOST), ("origin", PORT)], True),
        ([("host", "localhost:4300"), ("origin", "http://localhost:4300")], True),  # a tunnel's other end
        ([("host", "[::1]:4200")], True),
        ([("Host", HOST), ("Origin", PORT.upper())], True),
        ([("host", HOST), ("origin", "http://evil.example")], False),
        ([("host", HOST), ("origin", "http://127.0.0.1:4201")], False),  # the published reports
        ([("host", HOST), ("origin", f"http://evil.{HOST}")], False),
        ([("host", HOST), ("origin", "null")], False),  # a file, or a page in a sandbox
        ([("host", HOST), ("origin", "")], False),
        ([("host", HOST), ("origin", PORT), ("origin", "http://evil.example")], False),
        ([("host", "evil.example:4200")], False),
        ([("host", "evil.example"), ("origin", "http://evil.example")], False),  # a name that points to 127.0.0.1
        ([("host", "127.0.0.1.evil.example")], False),
        ([("host", "127.0.0.1@evil.example")], False),
        ([("host", "[::1")], False),
        ([("host", "")], False),
        ([("host", HOST), ("host", "evil.example")], False),
        ([], False),
    ],
)
def test_a_server_on_loopback_serves_its_own_pages_alone(
    kind: str, headers: list[tuple[str, str]], let_in: bool
) -> None:
    assert gets_in(kind, headers) == let_in


def test_a_proxy_is_let_in_by_the_origins_that_prefect_allows() -> None:
    proxied = [("host", "prefect.example.org"), ("origin", PROXY)]
    assert not gets_in("http", proxied)
    assert not gets_in("http", [("host", "[")], origins=["no-origin"])
    assert gets_in("http", proxied, origins=[PROXY])
    assert gets_in("http", [("host", HOST), ("origin", PROXY)], origins=[PROXY])  # nginx sends its own Host
    assert not gets_in("http", [("host", HOST), ("origin", "https://evil.example")], origins=[PROXY])


def test_a_server_in_a_container_has_any_name_but_serves_no_foreign_page() -> None:
    assert gets_in("http", [("host", "server:4200")], loopback=False)
    assert gets_in("http", [("host", "server:4200"), ("origin", "http://server:4200")], loopback=False)
    assert not gets_in("websocket", [("host", "server:4200"), ("origin", "http://evil.example")], loopback=False)


def test_a_refusal_says_the_rule_and_the_value_and_no_other_page_may_frame_an_answer() -> None:
    refused = answer("http", [("host", "evil.example")])
    assert b"Host must be a name of this server, got evil.example" in refused[1]["body"]
    assert refused[0]["headers"] == [(b"content-type", b"text/plain; charset=utf-8")]  # nothing for other origins
    (allowed,) = answer("http", [("host", HOST)])
    assert (b"x-frame-options", b"DENY") in allowed["headers"]
