"""Workers and servers for tests: server processes by the command line, or servers in a thread."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
from ruamel.yaml import YAML

from chunk_grpo.config.scorers import ExternalScorer, InSubprocess, OverHttp
from chunk_grpo.scorers.base import Scorer
from chunk_grpo.scorers.executors.http_scorer import HttpScorer
from chunk_grpo.scorers.executors.messages import worker_for
from chunk_grpo.scorers.workers.worker_protocol.serving import Limits, ScoringServer
from tests.scorers.odd_scorers import KEY, settings

ROOT = Path(__file__).resolve().parents[2]
NO_LIMITS = Limits(held_bytes=10**9, most_bytes=10**8, token=None, batch_seconds=600.0)


def in_subprocess(**changes: Any) -> InSubprocess:
    values = {"python": None, "script": None, "device": None, "start_seconds": 60.0, "timeout_seconds": 20.0}
    return InSubprocess(kind="subprocess", **values | changes)


def over_http(url: str, token_variable: str | None = None, timeout_seconds: float = 10.0) -> OverHttp:
    return OverHttp(kind="http", url=url, token_variable=token_variable, timeout_seconds=timeout_seconds)


def client(url: str, **options: Any) -> HttpScorer:
    """Client of the scorer `odd`."""
    return HttpScorer(KEY, settings(), over_http(url, **options))


def write_params(path: Path, key: str, settings: ExternalScorer) -> Path:
    """The shipped params.yaml with one scorer more."""
    yaml = YAML()
    raw = yaml.load(ROOT / "params.yaml")
    raw["scorers"][key] = settings.model_dump(mode="json")
    yaml.dump(raw, path)
    return path


class ServerProcess:
    """`chunk-grpo serve-scorer NAME`."""

    def __init__(self, params: Path, name: str, *options: str, **environment: str) -> None:
        command = [sys.executable, "-m", "chunk_grpo", "serve-scorer", name]
        command += ["--params", str(params), "--port", "0"]
        self.process = subprocess.Popen(
            [*command, *options], cwd=ROOT, env=os.environ | environment, stderr=subprocess.PIPE, text=True
        )
        self.log = ""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log += line
            if "listening on " in line:
                self.url = line.split("listening on ")[1].strip()
                return
        raise RuntimeError(self.log)

    def end(self) -> tuple[int, str]:
        """SIGTERM; the exit code and all of the log."""
        self.process.terminate()
        rest = self.process.communicate(timeout=20.0)[1]
        return self.process.returncode, self.log + rest

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing of it is left, whatever the test did."""
        if self.process.poll() is None:
            for process in (*psutil.Process(self.process.pid).children(recursive=True), self.process):
                process.kill()
        self.process.communicate()


@contextmanager
def server_in_thread(scorer: Scorer, **limits: Any) -> Iterator[str]:
    """The URL of a server of this process."""
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    server = ScoringServer(listener, replace(NO_LIMITS, **limits))
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(server.run, lambda: worker_for(scorer))
        try:
            yield url
        finally:
            server.leave()
            running.result()
