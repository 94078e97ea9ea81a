"""A stand-in for the Hugging Face hub on this machine: one repository of models, open or behind a licence.

It answers as the hub's API is documented and its client expects. Without a token, or with a wrong one, it lists the
files and gives none.
"""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

COMMIT = "c" * 40
READER, STRANGER = "hf_reader", "hf_stranger"
"""Tokens: the account of the first has accepted the licence, that of the second has not. There are no others."""


@dataclass
class Hub:
    """A running hub."""

    endpoint: str
    asked: list[str] = field(default_factory=list)
    """Method and path of each request."""


@contextmanager
def hub_with(repository: str, folder: Path, *, gated: bool = False, torn: bool = False) -> Iterator[Hub]:
    """A hub with a folder as the one commit of a repository; a `torn` one breaks off before each file."""
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path).strip("/")
            hub.asked.append(f"{self.command} {path}")
            token = self.headers.get("Authorization", "").removeprefix("Bearer ")
            if token not in ("", READER, STRANGER):
                return self.refuse(401, message="Invalid credentials in Authorization header")
            name, rest = path.removeprefix("api/models/"), ""
            if f"{name}/".startswith(f"{repository}/"):
                name, rest = repository, name[len(repository) + 1 :]
            place, _, rest = rest.partition("/")
            if name != repository:
                return self.refuse(404 if token else 401, "RepoNotFound", "Repository not found")
            if gated and token != READER and place in ("resolve", "auth-check"):
                told = f"Access to model {repository} is restricted."
                return self.refuse(403 if token else 401, "GatedRepo", told)
            revision, _, file = rest.partition("/")
            if revision not in ("", "main", COMMIT):
                return self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
            if not path.startswith("api/"):
                return self.give(file) if file in files else self.refuse(404, "EntryNotFound", "Entry not found")
            if place == "auth-check":
                return self.answer(200, b"OK")
            names = sorted(files)
            if place == "tree":
                found = [{"type": "file", "path": name, "size": len(files[name]), "oid": etag(name)} for name in names]
                return self.answer(200, json.dumps(found).encode())
            model = {"id": repository, "sha": COMMIT, "gated": "auto" if gated else False, "private": False}
            siblings = [{"rfilename": name} for name in names]
            return self.answer(200, json.dumps(model | {"siblings": siblings}).encode())

        def do_HEAD(self) -> None:
            self.do_GET()

        def give(self, file: str) -> None:
            self.answer(200, files[file], {"ETag": f'"{etag(file)}"', "X-Repo-Commit": COMMIT})

        def refuse(self, status: int, code: str = "", message: str = "") -> None:
            named = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})
            if code == "EntryNotFound":
                named["X-Repo-Commit"] = COMMIT
            self.answer(status, json.dumps({"error": message}).encode(), named)

        def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, text in {**(headers or {}), "Content-Length": str(len(body))}.items():
                self.send_header(name, text)
            self.end_headers()
            if torn and self.command == "GET" and "ETag" in (headers or {}):
                body, self.close_connection = b"", True  # after any byte the client would begin its tries again
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            del args

    def etag(name: str) -> str:
        return hashlib.sha1(files[name], usedforsecurity=False).hexdigest()

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub = Hub(f"http://127.0.0.1:{server.server_port}")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield hub
        finally:
            server.shutdown()
