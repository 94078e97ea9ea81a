"""`make serve`: Prefect server, work pools, deployments and workers in one terminal, until Ctrl-C.

PREFECT_PORT chooses the port (4200), GPU_WORKERS how many workers share the GPUs out (1), CHUNK_GRPO_PUBLISH where runs
publish, CHUNK_GRPO_REPORTS_URL where that is seen, CHUNK_GRPO_NOTIFY_WEBHOOK who is told, and
PREFECT_SERVER_DATABASE_CONNECTION_URL the database (SQLite in .prefect).
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from rich.console import Console

from chunk_grpo.environment import PUBLISH, REPORTS_URL
from infra.local_prefect import DATABASE, LocalPrefect, stop_on_signals
from infra.setup import SetUpError, webhook
from infra.worker import of_the_server

ROOT = Path(__file__).resolve().parents[1]
RUN = "prefect deployment run chunk-grpo/full --watch"


def main() -> int:
    """Serve until Ctrl-C (or SIGTERM, or the terminal closes)."""
    console = Console(highlight=False, soft_wrap=True)
    stop_on_signals()
    console.print("Starting the Prefect server, its work pools and workers ...")
    try:
        prefect = from_environment()
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


def from_environment() -> LocalPrefect:
    """What the variables of the environment ask for.

    Raises:
        SetUpError: one of them makes no sense.
    """
    return LocalPrefect(
        root=ROOT,
        home=Path(os.environ.get("PREFECT_HOME") or ROOT / ".prefect").resolve(),
        port=_number("PREFECT_PORT", 4200, least=1),
        gpu_workers=_number("GPU_WORKERS", 1, least=0),
        keep_gpu_limit=not os.environ.get("GPU_WORKERS"),
        database=os.environ.get(DATABASE) or None,
        server={name: value for name, value in os.environ.items() if of_the_server(name)},
        publish=os.environ.get(PUBLISH) or None,
        reports=os.environ.get(REPORTS_URL) or None,
        webhook=webhook(),
    )


def _number(variable: str, default: int, least: int) -> int:
    """A whole number from the environment.

    Raises:
        SetUpError: it is not one, or too small.
    """
    text = os.environ.get(variable) or str(default)
    if not text.isdecimal() or int(text) < least:
        raise SetUpError(f"{variable} must be a whole number from {least} on, got {text!r}")
    return int(text)


def _welcome(prefect: LocalPrefect) -> str:
    """What to open and what to type; the server's address only where `prefect.toml` would not give it."""
    other_server = prefect.port != 4200 or "PREFECT_API_URL" in os.environ
    variable = f"PREFECT_API_URL={prefect.url}/api " if other_server else ""
    return (
        f"\nPrefect UI   {prefect.url}\n"
        f"Run          . .venv/bin/activate && {variable}{RUN}      (in this folder, in another terminal)\n"
        f"Published    {prefect.reports_url or prefect.publish}\n"
        f"Logs, runs   {prefect.home}\n"
        "Stop         Ctrl-C\n"
    )


if __name__ == "__main__":
    sys.exit(main())
