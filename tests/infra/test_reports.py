"""The web server of published results: files of its folder, for its own name, and nothing that acts."""

from collections.abc import Iterator
from functools import partial
from http.client import HTTPConnection, HTTPResponse
from http.server import ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from infra.reports import POLICY, Handler


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    published = tmp_path / "published"
    (published / "tiny").mkdir(parents=True)
    (published / "tiny/index.html").write_text("<h1>the report</h1>")
    (tmp_path / "auth").write_text("secret")
    return published


@pytest.fixture
def port(folder: Path) -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder))) as server:
        Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        yield server.server_port
        server.shutdown()


def ask(port: int, path: str, host: str = "127.0.0.1", method: str = "GET") -> tuple[HTTPResponse, str]:
    connection = HTTPConnection("127.0.0.1", port)
    connection.request(method, path, headers={"Host": host})
    found = connection.getresponse()
    return found, found.read().decode()


def test_pages_and_lists_are_shown_with_a_policy_that_forbids_scripts(port: int) -> None:
    page, text = ask(port, "/tiny/")
    assert (page.status, text) == (200, "<h1>the report</h1>")
    listing, names = ask(port, "/")
    assert listing.status == 200
    assert "tiny/" in names
    for each in (page, listing, ask(port, "/no-such")[0]):
        assert each.headers["Content-Security-Policy"] == POLICY
        assert each.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("target", ["..", "../auth", "/etc", "/etc/hostname"])
def test_a_link_out_of_the_folder_is_not_followed(folder: Path, port: int, target: str) -> None:
    (folder / "link").symlink_to(target)
    for path in ("/link", "/link/", "/link/auth", "/link/hostname"):
        assert ask(port, path)[0].status == 404, path
        assert ask(port, path, method="HEAD")[0].status == 404, path


def test_a_link_within_the_folder_is(folder: Path, port: int) -> None:
    (folder / "latest").symlink_to("tiny")
    assert ask(port, "/latest/")[1] == "<h1>the report</h1>"


def test_an_index_that_links_out_is_not_shown(folder: Path, port: int) -> None:
    (folder / "tiny/index.html").unlink()
    (folder / "tiny/index.html").symlink_to("../../auth")
    assert "secret" not in ask(port, "/tiny/")[1]


@pytest.mark.parametrize("path", ["/%00", "/../auth", "/..%2fauth", "/%2e%2e/auth", "/tiny/../../auth", "//../auth"])
def test_a_path_out_of_the_folder_is_not_found(port: int, path: str) -> None:
    assert ask(port, path)[0].status == 404


def test_accepts_only_reports_url_and_local_host_names(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(port, "/tiny/", "evil.example")[0].status == 403
    assert ask(port, "/tiny/", "[::1")[0].status == 403
    monkeypatch.setenv("CHUNK_GRPO_REPORTS_URL", "https://reports.example.org/p")
    assert ask(port, "/tiny/", "reports.example.org")[0].status == 200
    assert ask(port, "/tiny/", "localhost:4201")[0].status == 200


def test_links_in_a_circle_are_not_found(folder: Path, port: int) -> None:
    (folder / "a").symlink_to("b")
    (folder / "b").symlink_to("a")
    assert ask(port, "/a")[0].status == 404
