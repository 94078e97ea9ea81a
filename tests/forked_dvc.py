"""The command `dvc` without the second that importing it takes."""

import logging
import os
import sys
from pathlib import Path

from dvc.cli import main as dvc_main
from dvc.logger import setup

from chunk_grpo.errors import ConfigError


def forked_dvc(folder: Path, *arguments: str) -> str:
    """Output of `dvc` in a process of its own, as users run it; a failure is an error."""
    said = folder.parent / "said"
    if (child := os.fork()) == 0:
        code = 1
        try:
            for name in ("", "dvc", "dvc_data", "dvc_objects"):  # pytest's and Prefect's
                logging.getLogger(name).handlers.clear()
            sys.stdout = sys.stderr = said.open("w")
            setup()
            os.chdir(folder)
            code = dvc_main(list(arguments))
            sys.stdout.flush()
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code != 0:
        raise ConfigError(f"dvc {arguments} in {folder}: {said.read_text()}")
    return said.read_text()
