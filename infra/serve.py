"""`make serve`: Prefect server, work pools, deployments and workers in one terminal, until Ctrl-C.

PREFECT_PORT chooses the port (4200).
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from rich.console import Console

from infra.local_prefect import LocalPrefect, SetUpError

ROOT = Path(__file__).resolve().parents[1]
RUN = "prefect deployment run chunk-grpo/full --watch"
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> int:
    """Serve until Ctrl-C (or SIGTERM, or the terminal closes)."""
    console = Console(highlight=False, soft_wrap=True)
    for number in _STOP_SIGNALS:
        signal.signal(number, _interrupt)
    port = int(os.environ.get("PREFECT_PORT", "4200"))
    prefect = LocalPrefect(root=ROOT, home=ROOT / ".prefect", port=port)
    console.print("Starting the Prefect server, its work pools and workers ...")
    try:
        with prefect.running():
            console.print(_welcome(prefect))
            while True:
                prefect.check()
                time.sleep(1)
    except KeyboardInterrupt:
        console.print("Stopped: server, workers and their flow runs.")
        return 0
    except SetUpError as error:
        console.print(f"make serve: {error}", markup=False)
        return 1


def _welcome(prefect: LocalPrefect) -> str:
    """What to open and what to type; the server's address only where `prefect.toml` would not give it."""
    other_server = prefect.port != 4200 or "PREFECT_API_URL" in os.environ
    variable = f"PREFECT_API_URL={prefect.url}/api " if other_server else ""
    return (
        f"\nPrefect UI   {prefect.url}\n"
        f"Run          . .venv/bin/activate && {variable}{RUN}      (in this folder, in another terminal)\n"
        f"Logs, runs   {prefect.home}\n"
        "Stop         Ctrl-C\n"
    )


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Begin to stop, once: a second Ctrl-C would leave processes behind."""
    for stop_signal in _STOP_SIGNALS:
        signal.signal(stop_signal, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
