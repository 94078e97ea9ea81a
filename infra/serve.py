"""`make serve`: Prefect server, work pools, deployments and workers in one terminal, until Ctrl-C.

Environment variables (default): PREFECT_PORT, port of the server (4200); GPU_WORKERS, number of workers that share the
GPUs (1); CHUNK_GRPO_PUBLISH, folder or URL for published results; CHUNK_GRPO_REPORTS_URL, URL at which browsers find
them; CHUNK_GRPO_NOTIFY_WEBHOOK, webhook for notifications; PREFECT_SERVER_DATABASE_CONNECTION_URL, database (SQLite in
.prefect).
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
                prefect.start_again(lambda text: console.print(text, markup=False))
                time.sleep(1)
    except KeyboardInterrupt:
        console.print("Stopped: server, workers and their flow runs.")
        return 0
    except SetUpError as error:
        console.print(f"make serve: {error}", markup=False)
        return 1


def from_environment() -> LocalPrefect:
    """Build the server from environment variables.

    Raises:
        SetUpError: A variable is invalid.
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
    """Read an integer from the environment.

    Raises:
        SetUpError: The value is not an integer, or less than `least`.
    """
    text = os.environ.get(variable) or str(default)
    if not text.isdecimal() or int(text) < least:
        raise SetUpError(f"{variable} must be a whole number of at least {least}, got {text!r}")
    return int(text)


def _welcome(prefect: LocalPrefect) -> str:
    """URLs and commands to show; includes PREFECT_API_URL only if it differs from prefect.toml."""
    other_server = prefect.port != 4200 or "PREFECT_API_URL" in os.environ
    variable = f"PREFECT_API_URL={prefect.url}/api " if other_server else ""
    elsewhere = (
        "" if prefect.gpu_workers else "GPU workers  none here; where the GPUs are: make worker POOL=gpu\n"
    )
    return (
        f"\nPrefect UI   {prefect.url}\n{elsewhere}"
        f"Run          . .venv/bin/activate && {variable}{RUN}      (in this folder, in another terminal)\n"
        f"Published    {prefect.reports_url or prefect.publish}\n"
        f"Logs, runs   {prefect.home}\n"
        "Stop         Ctrl-C\n"
    )


if __name__ == "__main__":
    sys.exit(main())
