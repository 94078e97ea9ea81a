"""The preset `smoke` on a real Prefect server with both workers, run twice, and a browser that looks at it."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.browser.pages import Ui, browser
from tests.drills.watch import Watch, serving

SCREENSHOTS = "CHUNK_GRPO_SCREENSHOTS"
"""Environment variable: the folder that the pictures for docs/ are put into, such as docs/images."""


@dataclass(frozen=True)
class Site:
    """A server, a flow run that executed every stage there, and one that found every stage in the cache."""

    watch: Watch
    ran: str
    cached: str

    def api(self, path: str, **body: Any) -> Any:
        """An answer of the server's API to a query."""
        return httpx.post(f"{self.watch.prefect.url}/api/{path}", json=body).raise_for_status().json()

    def run_of(self, stage: str) -> str:
        """Id of the flow run of a stage on the pool."""
        (found,) = self.watch.children(self.ran, stage)
        return str(found["id"])

    def deployment(self, name: str) -> str:
        """Id of a deployment."""
        return str(next(d["id"] for d in self.api("deployments/filter") if d["name"] == name))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A clone of this repository's commit, with a DVC cache of its own, and two runs there."""
    with serving(tmp_path_factory.mktemp("served") / "checkout") as watch:
        yield Site(watch, completed(watch), completed(watch))


def completed(watch: Watch, deployment: str = "full", **parameters: Any) -> str:
    """Id of a run of preset `smoke` that has completed."""
    run = watch.start(f"chunk-grpo/{deployment}", preset="smoke", **parameters)
    ended = watch.ended(run, 900)
    assert ended["state_type"] == "COMPLETED", ended["state"]["message"]
    return run


@pytest.fixture(scope="module")
def ui(site: Site) -> Iterator[Ui]:
    """A browser window."""
    with browser(site.watch.prefect.url) as opened:
        yield opened


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Folder of the pictures for docs/."""
    return Path(os.environ.get(SCREENSHOTS, tmp_path))
