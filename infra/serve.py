"""Prefect server, work pools, deployments and workers in one terminal, until Ctrl-C.

Environment variables (default): PREFECT_PORT, port of the server (4200); GPU_WORKERS, number of workers that share the
GPUs (1); AUTH=0, the server asks nobody for a password; CHUNK_GRPO_PUBLISH, folder or URL for published results;
CHUNK_GRPO_REPORTS_URL, URL at which browsers find them; CHUNK_GRPO_NOTIFY_WEBHOOK, webhook for notifications;
PREFECT_SERVER_DATABASE_CONNECTION_URL, database (SQLite in .prefect).
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from chunk_grpo.__main__ import call
from chunk_grpo.environment import PUBLISH, REPORTS_URL, whole_number
from chunk_grpo.orchestration.served import AUTH, OUR_STRING, kept_string
from infra.command_line import command_parser
from infra.local_prefect import SERVER_STRING, LocalPrefect, stop_on_signals
from infra.setup import webhook
from infra.worker import of_the_server, own_folder

ROOT = Path(__file__).resolve().parents[1]
RUN = "prefect deployment run chunk-grpo/full --watch"
OPEN = "AUTH=0: nobody is asked for a password. Any user of this machine can start runs, and so any command, as you."


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until Ctrl-C (or SIGTERM, or the terminal closes)."""
    parser().parse_args(argv)
    console = Console(highlight=False, soft_wrap=True)
    stop_on_signals()
    console.print("Starting the Prefect server, its work pools and workers ...")
    try:
        prefect = from_environment()
        is_new = ask_for_string(prefect)
        if is_new and console.is_terminal:  # never in a log
            console.print(f"Password of the UI, which asks once: {prefect.auth}", markup=False)
        with prefect.running():
            console.print(_welcome(prefect), markup=False)
            while True:
                prefect.check()
                time.sleep(1)
    except KeyboardInterrupt:
        console.print("Stopped: server, workers and their flow runs.")
        return 0


def parser() -> argparse.ArgumentParser:
    return command_parser("serve", __doc__)


def from_environment() -> LocalPrefect:
    """Build the server from environment variables."""
    return LocalPrefect(
        root=ROOT,
        home=Path(os.environ.get("PREFECT_HOME") or ROOT / ".prefect").resolve(),
        port=whole_number("PREFECT_PORT", 4200),
        gpu_workers=whole_number("GPU_WORKERS", None, least=0),
        server={name: value for name, value in os.environ.items() if value and of_the_server(name)},
        publish=os.environ.get(PUBLISH) or None,
        reports=os.environ.get(REPORTS_URL) or None,
        webhook=webhook(),
    )


def ask_for_string(prefect: LocalPrefect) -> bool:
    """Let a server ask for the user's string, or for the one in PREFECT_HOME; or for none with AUTH=0.

    Returns whether the string was made now. A file with the string that others can read is refused.
    """
    prefect.auth, is_new = os.environ.get(SERVER_STRING) or None, False
    if whole_number("AUTH", 1, least=0) and prefect.auth is None:
        own_folder(prefect.home)
        prefect.auth, is_new = kept_string(prefect.home)
    return is_new


def _welcome(prefect: LocalPrefect) -> str:
    """URLs and commands to show, with the variables that a command needs where prefect.toml does not suffice."""
    variables = ""
    if prefect.port != 4200 or "PREFECT_API_URL" in os.environ:
        variables += f"PREFECT_API_URL={prefect.url}/api "
    if prefect.home != ROOT / ".prefect":
        variables += f"PREFECT_HOME={prefect.home} "
    if prefect.auth is not None and os.environ.get(OUR_STRING, prefect.auth) != prefect.auth:
        variables += f'{OUR_STRING}="$(cat {prefect.home / AUTH})" '
    elsewhere = "GPU workers  none here; where the GPUs are: make worker POOL=gpu\n" if prefect.gpu_workers == 0 else ""
    password = f"in {prefect.home / AUTH}"
    if prefect.auth is None:
        password = OPEN
    elif os.environ.get(SERVER_STRING):
        password = f"yours, of {SERVER_STRING}"
    return (
        f"\nPrefect UI   {prefect.url}\nPassword     {password}\n{elsewhere}"
        f"Run          . .venv/bin/activate && {variables}{RUN}      (in this folder, in another terminal)\n"
        f"Published    {prefect.reports_url or prefect.publish}\n"
        f"Logs, runs   {prefect.home}\n"
        "Stop         Ctrl-C\n"
    )


if __name__ == "__main__":
    sys.exit(call("serve", sys.argv[1:]))
