"""Print a script with which a shell completes sub-commands and options of chunk-grpo.

chunk-grpo completion bash > ~/.local/share/bash-completion/completions/chunk-grpo
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import shtab

from chunk_grpo.__main__ import COMMANDS, module_of


def main(argv: Sequence[str] | None = None) -> int:
    """Print the script; return 0."""
    options = parser().parse_args(argv)
    whole = argparse.ArgumentParser(prog="chunk-grpo")
    commands = whole.add_subparsers()
    for name, command in COMMANDS.items():
        commands.add_parser(name, help=command.help, parents=[module_of(name).parser()], add_help=False)
    sys.stdout.write(shtab.complete(whole, options.shell) + "\n")
    return 0


def parser() -> argparse.ArgumentParser:
    """Parser of the command line."""
    own = argparse.ArgumentParser(
        prog="chunk-grpo completion",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    own.add_argument("shell", choices=shtab.SUPPORTED_SHELLS)
    return own
