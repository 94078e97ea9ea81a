"""Run a preset from end to end through a real Prefect server and both workers, then stop everything.

`python -m infra.smoke` is a check for CI. It starts its own server on a free port and leaves nothing behind except the
stages' entries in the DVC cache. It fails if the flow run fails.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from chunk_grpo.orchestration.served import new_string
from infra.local_prefect import LocalPrefect, free_port, stop_on_signals
from infra.setup import SetUpError

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    """Return 0 if the run completed, 130 if it was stopped, otherwise 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="smoke")
    parser.add_argument("--force", action="store_true", help="run every stage, cached or not")
    arguments = parser.parse_args()
    parameters = json.dumps({"preset": arguments.preset, "force": arguments.force})
    command = ["prefect", "deployment", "run", "chunk-grpo/full", "--params", parameters, "--watch"]
    console = Console(highlight=False, soft_wrap=True)
    stop_on_signals()
    with tempfile.TemporaryDirectory(prefix="chunk-grpo-smoke-") as home:
        start = time.monotonic()
        server = LocalPrefect(root=ROOT, home=Path(home), port=free_port(), auth=new_string())
        try:
            with server.running():
                console.print(f"Server, workers and deployments are up after {time.monotonic() - start:.1f} s")
                start = time.monotonic()
                code = subprocess.run(command, cwd=ROOT, env=server.environment, check=False).returncode
                console.print(f"The flow run took {time.monotonic() - start:.1f} s")
        except KeyboardInterrupt:
            console.print("Stopped: server, workers and the flow run.")
            return 130
        except SetUpError as error:
            console.print(f"error: {error}", style="bold red", markup=False)
            return 1
    return 0 if code == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
