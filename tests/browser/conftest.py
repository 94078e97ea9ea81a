"""The preset `smoke` on a real Prefect server with both workers, run twice, and a browser that looks at it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from infra.local_prefect import LocalPrefect, free_port
from tests.browser.pages import Ui, browser

REPOSITORY = Path(__file__).resolve().parents[2]
SCREENSHOTS = "CHUNK_GRPO_SCREENSHOTS"
"""Environment variable: the folder that the pictures for docs/ are put into, such as docs/images."""


BEGUN = {"flow_runs": {"state": {"type": {"not_any_": ["SCHEDULED"]}}}}
"""Of the server's runs those that are not only planned."""


@dataclass(frozen=True)
class Site:
    """A server and what ran there.

    Attributes:
        prefect: The server.
        ran: Id of the flow run that executed every stage.
        cached: Id of the flow run that found every stage in the cache.
    """

    prefect: LocalPrefect
    ran: str
    cached: str

    def api(self, path: str, **body: Any) -> Any:
        """An answer of the server's API to a query."""
        return httpx.post(f"{self.prefect.url}/api/{path}", json=body).raise_for_status().json()

    def run_of(self, stage: str) -> str:
        """Id of the flow run of a stage on the pool."""
        (found,) = self.api("flow_runs/filter", flow_runs={"name": {"any_": [stage]}})
        return str(found["id"])

    def deployment(self, name: str) -> str:
        """Id of a deployment."""
        return str(next(d["id"] for d in self.api("deployments/filter") if d["name"] == name))


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A clone of this repository's commit, with a DVC cache of its own, and two runs there."""
    root = tmp_path_factory.mktemp("served") / "checkout"
    subprocess.run(["git", "clone", "--quiet", str(REPOSITORY), str(root)], check=True)
    with LocalPrefect(root=root, home=root / ".prefect", port=free_port()).running() as served:
        yield Site(served, run(served, preset="smoke"), run(served, preset="smoke"))


def run(prefect: LocalPrefect, **parameters: Any) -> str:
    """Run the deployment chunk-grpo/full to its end; the id of the flow run."""
    command = [sys.executable, "-m", "prefect", "deployment", "run", "chunk-grpo/full", "--watch"]
    command += ["--params", json.dumps(parameters)]
    done = subprocess.run(
        command, cwd=prefect.root, env=prefect.environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    body = {"sort": "START_TIME_DESC", "limit": 1, "flows": {"name": {"any_": ["chunk-grpo"]}}, **BEGUN}
    found = httpx.post(f"{prefect.url}/api/flow_runs/filter", json=body).raise_for_status().json()
    return str(found[0]["id"])


@pytest.fixture(scope="session")
def ui(site: Site) -> Iterator[Ui]:
    """A browser window."""
    with browser(site.prefect.url) as opened:
        yield opened


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Where pictures for docs/ go."""
    return Path(os.environ.get(SCREENSHOTS, tmp_path))
