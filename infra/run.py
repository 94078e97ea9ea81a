"""Check params.yaml, run the pipeline, and print where the report is.

chunk-grpo run      (make run)
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from chunk_grpo.errors import ChunkGrpoError
from chunk_grpo.orchestration.guard import exec_with_parent_death_signal
from infra import params

ROOT = Path(__file__).resolve().parents[1]


def main(argv: Sequence[str] | None = None) -> int:
    """Run; return the exit code."""
    parser().parse_args(argv)
    try:
        params.check()
    except ChunkGrpoError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    command = exec_with_parent_death_signal([sys.executable, "-m", "dvc", "repro"])
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    if code == 0:
        sys.stdout.write(f"\nReport: {ROOT / 'artifacts/report/index.html'}\n")
    return code


def parser() -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog="chunk-grpo run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )


if __name__ == "__main__":
    sys.exit(main())
