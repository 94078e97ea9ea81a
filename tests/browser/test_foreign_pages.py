"""What a page of another address can do at the server of `make serve` and at its reports, in a real browser."""

from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from PIL import Image

from chunk_grpo.orchestration.served import kept_string
from infra.local_prefect import LocalPrefect, free_port
from tests.browser.pages import Ui, browser

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ASK = """
const [url, string, done] = arguments;
const body = '{}', headers = string ? {Authorization: 'Basic ' + btoa(string)} : {};
const json = {...headers, 'content-type': 'application/json'}, text = {...headers, 'content-type': 'text/plain'};
const post = h => fetch(url + '/api/deployments/filter', {method: 'POST', headers: h, body})
    .then(r => String(r.status), e => 'refused');
const socket = new Promise(end => {
    const s = new WebSocket(url.replace('http', 'ws') + '/api/events/out', 'prefect');
    s.onopen = () => end('open'); s.onerror = () => end('refused');
});
Promise.all([post(json), post(text), socket]).then(done);
"""
"""What the page gets for JSON, for text (which needs no question in advance), and for a WebSocket."""

REPORT = """<title>report</title><h1>The report</h1><p id=here>no script ran</p><img src=picture.png>
<script>document.getElementById('here').textContent = 'a script ran';</script>
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, make_pipeline: Callable[[Path], Path]) -> Iterator[LocalPrefect]:
    root = make_pipeline(tmp_path_factory.mktemp("served"))
    (root / ".prefect").mkdir()
    auth, _ = kept_string(root / ".prefect")
    with LocalPrefect(root=root, home=root / ".prefect", port=free_port(), auth=auth).running() as prefect:
        yield prefect


@pytest.fixture(scope="module")
def ui(served: LocalPrefect) -> Iterator[Ui]:
    with browser(served.url, "--host-resolver-rules=MAP evil.example 127.0.0.1") as opened:
        yield opened


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[int]:
    """Port of another web server of this machine."""
    (tmp_path / "index.html").write_text("<h1>another page</h1>")
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def test_ui_asks_for_password_once(ui: Ui, served: LocalPrefect) -> None:
    ui.open("dashboard", "Login")
    ui.fill("input", served.auth or "")
    ui.click("Login")
    ui.wait_for("Event Feed")
    ui.open("deployments", "ablations", "reevaluate")


def test_server_answers_only_its_own_ui_with_password(ui: Ui, served: LocalPrefect, elsewhere: int) -> None:
    string = served.auth or ""
    ui.visit(f"{served.url}/dashboard")
    assert ui.asynchronous(ASK, served.url, string) == ["200", "200", "open"]
    assert ui.asynchronous(ASK, served.url, "") == ["401", "401", "open"]  # the socket is closed by its first message
    for origin in (f"http://127.0.0.1:{elsewhere}", f"http://evil.example:{elsewhere}"):
        ui.visit(origin)
        for known in ("", string):
            assert ui.asynchronous(ASK, served.url, known) == ["refused"] * 3, origin


def test_rejects_rebound_host_name(ui: Ui, served: LocalPrefect) -> None:
    ui.visit(f"http://evil.example:{served.port}/api/health")
    ui.wait_for("Host must be a name of this server, got evil.example")


def test_a_published_page_is_shown_and_runs_no_script(ui: Ui, served: LocalPrefect) -> None:
    folder = served.published
    assert folder is not None
    (folder / "p").mkdir()
    (folder / "p/index.html").write_text(REPORT)
    Image.new("RGB", (37, 20), "red").save(folder / "p/picture.png")
    ui.visit(f"{served.reports_url}/p/")
    ui.wait_for("The report", "no script ran")
    assert ui.asynchronous("arguments[0](document.images[0].naturalWidth)") == 37
    ui.visit(f"{served.reports_url}/")
    ui.wait_for("p/")
