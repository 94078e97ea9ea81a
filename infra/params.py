"""params.yaml before a run: compose a preset into it, or check all of it.

python -m infra.params compose PRESET [--force]      (make params PRESET=...)
python -m infra.params check                         (the first act of make run)
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from chunk_grpo.config import load_params
from chunk_grpo.errors import ConfigError

ROOT = Path(__file__).resolve().parents[1]


def main(argv: Sequence[str] | None = None) -> int:
    """Compose or check; the exit code, 2 with a message for what is refused."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    compose = commands.add_parser("compose", help="write params.yaml from conf/")
    compose.add_argument("preset", metavar="PRESET", help="a file of conf/preset/")
    compose.add_argument("--force", action="store_true", help="replace edits of params.yaml")
    commands.add_parser("check", help="check all of params.yaml")
    options = parser.parse_args(argv)
    try:
        if options.command == "check":
            load_params(ROOT / "params.yaml")
        else:
            from chunk_grpo.orchestration.presets import (
                replace_params,
            )  # here: it imports DVC, which takes a second

            replace_params(ROOT, options.preset, force=options.force)
    except ConfigError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
