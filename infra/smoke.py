"""Run a preset from end to end through a real Prefect server and both workers, then stop everything.

`python -m infra.smoke` is a check for CI. It starts its own server on a free port and leaves nothing behind except the
stages' entries in the DVC cache. It fails if the flow run fails or a stage has no outcome.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console

from chunk_grpo.orchestration.served import new_string
from infra.local_prefect import LocalPrefect, free_port, stop_on_signals
from infra.setup import SetUpError

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    """Return 0 if the run and all its stages completed, 130 if it was stopped, otherwise 1."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", default="smoke")
    parser.add_argument("--force", action="store_true", help="run every stage, cached or not")
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository (default: this one)")
    arguments = parser.parse_args()
    console = Console(highlight=False, soft_wrap=True)
    stop_on_signals()
    with tempfile.TemporaryDirectory(prefix="chunk-grpo-smoke-") as home:
        root = arguments.root.resolve()
        prefect = LocalPrefect(root=root, home=Path(home), port=free_port(), auth=new_string())
        try:
            return 0 if check(prefect, arguments.preset, arguments.force, console) else 1
        except KeyboardInterrupt:
            console.print("Stopped: server, workers and the flow run.")
            return 130
        except SetUpError as error:
            console.print(f"error: {error}", style="bold red", markup=False)
            return 1


def check(prefect: LocalPrefect, preset: str, force: bool, console: Console) -> bool:
    """Start the server, run the preset and print the outcomes; return whether all stages completed."""
    start = time.monotonic()
    with prefect.running():
        console.print(f"Server, workers and deployments are up after {time.monotonic() - start:.1f} s")
        start = time.monotonic()
        completed = run_and_watch(prefect, preset, force)
        console.print(f"The flow run took {time.monotonic() - start:.1f} s")
        try:
            table = latest_artifact(prefect, f"outcomes-{preset}")
        except httpx.HTTPStatusError:  # the run failed before it published outcomes
            console.print(f"No stage was reached. {latest_state(prefect)}", markup=False)
            return False
        console.print(table, markup=False)
    return completed and "**failed**" not in table and "not reached" not in table


def run_and_watch(prefect: LocalPrefect, preset: str, force: bool = False) -> bool:
    """Run `prefect deployment run chunk-grpo/full --watch`; return whether the run completed."""
    parameters = json.dumps({"preset": preset, "force": force})
    command = ["prefect", "deployment", "run", "chunk-grpo/full", "--params", parameters, "--watch"]
    return subprocess.run(command, cwd=prefect.root, env=prefect.environment, check=False).returncode == 0


def latest_artifact(prefect: LocalPrefect, key: str) -> str:
    """The text of the newest artifact with this key."""
    return str(_asked(prefect, "GET", f"artifacts/{key}/latest")["data"])


def latest_state(prefect: LocalPrefect) -> str:
    """State name and message of the newest run of chunk-grpo/full."""
    full = _asked(prefect, "GET", "deployments/name/chunk-grpo/full")
    newest = {
        "flow_runs": {"deployment_id": {"any_": [full["id"]]}},
        "sort": "EXPECTED_START_TIME_DESC",
        "limit": 1,
    }
    runs = _asked(prefect, "POST", "flow_runs/filter", newest)
    return f"{runs[0]['state']['name']}: {runs[0]['state']['message']}" if runs else "No run was created."


def _asked(prefect: LocalPrefect, method: str, path: str, body: object = None) -> Any:
    """The server's answer to one request."""
    user, _, password = (prefect.auth or ":").partition(":")
    url = f"{prefect.url}/api/{path}"
    return httpx.request(method, url, json=body, auth=(user, password)).raise_for_status().json()


if __name__ == "__main__":
    sys.exit(main())
