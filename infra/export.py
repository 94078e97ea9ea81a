"""Export a trained policy, with a model card.

chunk-grpo export chunk-ws --seed 0 --to comfyui --out exported --push OWNER/NAME --private
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from infra.command_line import command_parser

ROOT = Path(__file__).resolve().parents[1]


def main(argv: Sequence[str] | None = None) -> int:
    """Export; return the exit code: 2 for wrong arguments, 3 where the run lacks the policy."""
    from chunk_grpo.library.export import export_run
    from chunk_grpo.library.hub import check_login, push

    options = parser().parse_args(argv)
    if options.push is not None:
        check_login(options.push)  # before the weights are written
    export_run(options.checkout, options.variant, options.seed, options.to, options.out)
    address = None if options.push is None else push(options.out, options.push, is_private=options.private)
    sys.stdout.write(f"{options.out}\n" if address is None else f"{options.out}\n{address}\n")
    return 0


def parser() -> argparse.ArgumentParser:
    from chunk_grpo.library.export import Kind

    own = command_parser("export", __doc__)
    own.add_argument("variant", help="name of the variant")
    own.add_argument("--seed", type=int, default=0, help="training seed (default: 0)")
    own.add_argument("--to", choices=get_args(Kind), default="diffusers", help="what it is for (default: diffusers)")
    own.add_argument("--out", type=Path, required=True, help="folder to write; it must not exist")
    own.add_argument("--push", metavar="OWNER/NAME", help="upload the folder to this repository of the hub")
    own.add_argument("--private", action="store_true", help="make a new repository of --push private")
    own.add_argument("--checkout", type=Path, default=ROOT, help="checkout with the run (default: this one)")
    return own
