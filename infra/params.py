"""Prepare params.yaml: compose a preset into it, or validate it. Both print remarks on valid parameters.

`reference` writes what describes its keys: the tables of docs/parameters.md, and conf/params.schema.json for editors.

chunk-grpo params compose PRESET [--variants NAME] [--force]      (make params PRESET=... VARIANTS=...)
chunk-grpo params check                         (first step of chunk-grpo run)
chunk-grpo params reference                     (after an edit of chunk_grpo/config/ or conf/preset/tiny.yaml)
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from chunk_grpo.artifacts import write_text
from chunk_grpo.config import Params, load_params
from chunk_grpo.config.notices import notices
from chunk_grpo.orchestration.dvc_state import keep_own_state
from chunk_grpo.training.trackers import check_trackers
from infra.command_line import command_parser

ROOT = Path(__file__).resolve().parents[1]


def main(argv: Sequence[str] | None = None) -> int:
    """Compose or check; return the exit code: 2, with a message, for invalid input."""
    options = parser().parse_args(argv)
    if options.command == "reference":
        from infra.reference import reference  # here and below: `check` begins each run, and Hydra takes its time

        for name, text in reference(ROOT).items():
            write_text(text, str(ROOT / name))
    elif options.command == "check":
        check()
    else:
        from chunk_grpo.orchestration.presets import replace_params

        replace_params(ROOT, options.preset, force=options.force, variants=options.variants)
        _noted()
    return 0


def check() -> None:
    """Check params.yaml, the packages that it needs, and DVC's folder for its state; print remarks.

    ConfigError lists all problems of params.yaml.
    """
    keep_own_state(ROOT)
    params = _noted()
    check_trackers(params.trackers)
    if params.model.attention_backend is not None:
        from chunk_grpo.families.attention import check_backend  # here: torch and diffusers take seconds

        check_backend(params.model.attention_backend)


def _noted() -> Params:
    params = load_params(ROOT / "params.yaml")
    for notice in notices(params):
        sys.stderr.write(f"note: {notice}\n")
    return params


def parser() -> argparse.ArgumentParser:
    own = command_parser("params", __doc__)
    commands = own.add_subparsers(dest="command", required=True)
    compose = commands.add_parser("compose", help="write params.yaml from conf/")
    compose.add_argument("preset", metavar="PRESET", help="name of a file in conf/preset/, without .yaml")
    compose.add_argument("--variants", help="name of a file in conf/variants/, in place of the preset's own")
    compose.add_argument("--force", action="store_true", help="overwrite edits of params.yaml")
    commands.add_parser("check", help="validate params.yaml")
    commands.add_parser("reference", help="write docs/parameters.md and conf/params.schema.json")
    return own
