"""Commit params.yaml and dvc.lock of a finished run, and push its results for `dvc pull dvc.yaml` in a clone.

chunk-grpo track [--message TEXT] [--checkout FOLDER]      (make track)

The run must be up to date: nothing that `dvc repro` would run, no edits besides params.yaml, and a DVC remote.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from chunk_grpo.config import load_params
from chunk_grpo.errors import ConfigError
from chunk_grpo.git import git, uncommitted
from chunk_grpo.orchestration.commands import dvc, require_clone
from infra.command_line import command_parser

ROOT = Path(__file__).resolve().parents[1]
PIPELINE = "dvc.yaml"  # not that of pretraining/
TRACKED = ("params.yaml", "dvc.lock")


def main(argv: Sequence[str] | None = None) -> int:
    """Push the results of a checkout to its DVC remote, and commit what `dvc pull` needs; return 0.

    The run must be up to date, without other edits, and there must be a remote.
    """
    options = parser().parse_args(argv)
    checkout = options.checkout
    require_clone(checkout)
    params = load_params(checkout / "params.yaml")
    edits = [line for line in uncommitted(checkout) if not line.endswith("params.yaml")]
    if edits:
        raise ConfigError(
            f"{checkout}: must have no uncommitted edits besides params.yaml, since the results are of these files, "
            f"got {', '.join(' '.join(line.split()) for line in edits)}; commit them, or undo them and run `dvc repro`"
        )
    if not dvc(checkout, "config", "--", "core.remote", check=False).strip():
        raise ConfigError(
            f"{checkout}: has no DVC remote from which others could pull; add one: "
            "`dvc remote add -d store s3://BUCKET/dvc`"
        )
    if changed := to_run(checkout):
        raise ConfigError(
            f"{checkout}: the run is not finished or not of these files: {', '.join(changed)}; run `dvc repro` first"
        )
    dvc(checkout, "push", PIPELINE)
    git(checkout, "add", "--", *TRACKED)
    if git(checkout, "status", "--porcelain", "--", *TRACKED):
        message = options.message or f"run: {params.composed_from}"
        git(checkout, "commit", "--quiet", "--message", message, "--", *TRACKED)
    sys.stdout.write(git(checkout, "log", "-1", "--oneline"))
    return 0


def parser() -> argparse.ArgumentParser:
    own = command_parser("track", __doc__)
    own.add_argument("--message", help="message of the commit (default: `run: ` and the preset's name)")
    own.add_argument("--checkout", type=Path, default=ROOT, help="checkout with the run (default: this one)")
    return own


def to_run(checkout: Path) -> list[str]:
    """Stages that `dvc repro` would run, besides `inputs`, which always runs."""
    if not (checkout / "dvc.lock").exists():
        return ["all stages"]
    found = json.loads(dvc(checkout, "status", "--json", PIPELINE))
    if "inputs" in found:  # it records the user's files and settings, which the other stages depend on
        dvc(checkout, "repro", "--single-item", "inputs")
        found = json.loads(dvc(checkout, "status", "--json", PIPELINE))
    return [name for name, why in found.items() if why != ["always changed"]]
