"""DVC's command line: for its output, and as scripts for `python -c`, with the arguments of `dvc`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from chunk_grpo.errors import ConfigError

# Like `python -m dvc`, but shows damaged objects: with `verify` DVC reports them at debug level only.
_PREPARED = """\
import logging, sys
from dvc.cli import main
logging.getLogger("dvc_data.hashfile.db").setLevel("DEBUG")
logging.getLogger("dvc_data.hashfile.db.local").setLevel("INFO")
"""
DVC = f"{_PREPARED}sys.exit(main(sys.argv[1:]))"

# Checks out what dvc.lock names, then does the same. Stages as targets would take longer: 3.5 s for 24, not 1.1 s.
CHECKED_OUT = f"""{_PREPARED}
main(["checkout", "--force", "--allow-missing", "dvc.yaml"])
sys.exit(main(sys.argv[1:]))
"""

# Sends the entries of the run cache that the remote lacks or has in part; `dvc push --run-cache` sends all each time.
PUSH_RUN_CACHE = """\
import sys
from pathlib import Path
from dvc.repo import Repo
try:
    with Repo() as repo:
        remote, cache = repo.cloud.get_remote(), Path(repo.cache.local.path).parents[1]
        fs, runs = remote.fs, remote.fs.join(remote.path, "runs")
        if fs.protocol not in ("http", "https"):  # nothing can be listed there
            found = {} if fs.protocol == "local" else fs.fs.find(runs, detail=True)
            there = {tuple(fs.parts(path)[-3:]): info["size"] for path, info in found.items()}
            for entry in sorted((cache / "runs").glob("??/*/*")):
                if entry.suffix != ".tmp" and there.get(entry.parts[-3:]) != entry.stat().st_size:
                    fs.put_file(str(entry), fs.join(runs, *entry.parts[-3:]))
except Exception as error:
    sys.exit(f"ERROR: the run cache was not sent: {type(error).__name__}: {error}")
"""


def dvc(folder: Path, *arguments: str, check: bool = True) -> str:
    """Output of a DVC command in a repository; with `check`, its failure is a ConfigError."""
    command = [sys.executable, "-m", "dvc", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        raise ConfigError(f"dvc {arguments[0]} failed in {folder}: {done.stdout}{done.stderr}")
    return done.stdout
