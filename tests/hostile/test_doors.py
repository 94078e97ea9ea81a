"""Random headers and paths at the server of `make serve` and at its reports: what is not ours stays out."""

import asyncio
import random
from functools import partial
from http.client import HTTPConnection
from http.server import ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import quote

from infra.reports import Handler
from infra.server import Door

PARTS = (
    *[
        "127.0.0.1",
        "localhost",
        "[::1]",
        "evil.example",
        ":",
        "@",
        "/",
        "#",
        "?",
        "://",
        "http",
        "https",
        "null",
        "4200",
        "%",
        "\\",
        "[",
        "]",
        ".",
        ",",
    ],
    " ",
    "",
)
OURS = {"127.0.0.1", "localhost", "[::1]"}


def reached(headers: list[tuple[bytes, bytes]], kind: str) -> bool:
    """Whether a request gets past the door."""
    found: list[bool] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        found.append(True)

    async def send(message: Any) -> None:
        pass

    asyncio.run(Door(app)({"type": kind, "headers": headers}, None, send))
    return bool(found)


def test_random_headers_get_in_only_with_a_name_of_ours_and_its_own_origin() -> None:
    draw, passed = random.Random(45), 0
    for _ in range(20_000):
        host = "".join(draw.choices(PARTS, k=draw.randint(1, 3)))
        origin = "".join(draw.choices(PARTS, k=draw.randint(1, 5)))
        headers = [(b"host", host.encode()), (b"origin", origin.encode())][: draw.randint(1, 2)]
        if reached(headers, draw.choice(["http", "websocket"])):
            passed += 1
            assert host.removesuffix("4200").removesuffix(":") in OURS, host
            assert len(headers) == 1 or origin.endswith(f"://{host}"), (host, origin)
    assert passed > 20


def test_random_paths_never_leave_the_folder_of_the_reports(tmp_path: Path) -> None:
    folder = tmp_path / "published"
    (folder / "a").mkdir(parents=True)
    (tmp_path / "auth").write_text("secret")
    (folder / "a/link").symlink_to("../../auth")
    (folder / "out").symlink_to("..")
    draw = random.Random(46)
    words = [
        "..",
        ".",
        "a",
        "link",
        "out",
        "auth",
        "%2e%2e",
        "%2f",
        "%5c",
        "",
        "%00",
        "%ff",
        "~",
        str(tmp_path),
    ]
    statuses = set()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        for _ in range(400):
            path = "/" + draw.choice(("/", "?", "")) + "/".join(draw.choices(words, k=draw.randint(1, 5)))
            connection = HTTPConnection("127.0.0.1", server.server_port)
            connection.request(
                draw.choice(["GET", "HEAD"]), quote(path, safe="/%?"), headers={"Host": "127.0.0.1"}
            )
            answer = connection.getresponse()
            statuses.add(answer.status)
            assert b"secret" not in answer.read(), path
            connection.close()
        server.shutdown()
    assert statuses <= {200, 301, 404}
