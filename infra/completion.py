"""Print a script with which a shell completes sub-commands and options of chunk-grpo.

mkdir -p ~/.local/share/bash-completion/completions
chunk-grpo completion bash > ~/.local/share/bash-completion/completions/chunk-grpo
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import shtab

from chunk_grpo.__main__ import COMMANDS, module_of
from infra.command_line import command_parser

ROOT = Path(__file__).resolve().parents[1]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the script; return 0."""
    options = parser().parse_args(argv)
    whole = argparse.ArgumentParser(prog="chunk-grpo")
    commands = whole.add_subparsers()
    for name, command in COMMANDS.items():
        own = module_of(name).parser()
        _name_presets(own)
        commands.add_parser(name, help=command.help, parents=[own], add_help=False)
    sys.stdout.write(shtab.complete(whole, options.shell) + "\n")
    return 0


def _name_presets(own: argparse.ArgumentParser) -> None:
    """Let presets be completed, in sub-commands too; the commands themselves name them in their errors."""
    for action in own._actions:
        if action.dest == "preset":
            action.choices = sorted(path.stem for path in (ROOT / "conf" / "preset").glob("*.yaml"))
        elif isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                _name_presets(inner)


def parser() -> argparse.ArgumentParser:
    """Parser of the command line."""
    own = command_parser("completion", __doc__)
    own.add_argument("shell", choices=shtab.SUPPORTED_SHELLS)
    return own
