"""`chunk-grpo`, the console command: its sub-commands are the `main` functions of other modules.

It acts on the clone in whose folder it is called, with that clone's code, as `python -m`, dvc and make do; elsewhere on
the clone that it was installed from. Only the module of the called sub-command is imported.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]


class Command(NamedTuple):
    """A sub-command."""

    module: str
    """Module with `parser()` and `main(argv)`; `call` shows its errors. The wheel lacks the modules of infra."""
    help: str
    """One line."""


COMMANDS = {
    "run": Command("infra.run", "check params.yaml, run the pipeline and print its answer"),
    "params": Command("infra.params", "write params.yaml from a preset, or check it"),
    "plan": Command("infra.plan", "print what a run will take: hours, memory, disk, money"),
    "accept": Command("infra.accept", "prove on this machine that a preset works, on a page to send back"),
    "score": Command("infra.score_images", "score a folder of images"),
    "export": Command("infra.export", "write a trained policy for diffusers or ComfyUI, with a model card"),
    "track": Command("infra.track", "commit and push a finished run"),
    "gc": Command("infra.gc", "list or remove what the DVC cache no longer needs"),
    "publish": Command("chunk_grpo.artifacts.publishing", "copy the results of a run to a folder or bucket"),
    "serve": Command("infra.serve", "start a Prefect server with workers and deployments"),
    "worker": Command("infra.worker", "start a worker for a Prefect server"),
    "setup": Command("infra.setup", "create work pools and deployments at a Prefect server"),
    "serve-scorer": Command("chunk_grpo.scorers.serve", "serve a scorer of params.yaml over HTTP"),
    "completion": Command("infra.completion", "print a script that lets a shell complete words"),
}

NEEDS_A_CLONE = (
    "error: chunk-grpo {name} needs a clone of the repository: the wheel lacks conf/, dvc.yaml, stages/ and infra/; "
    "`git clone REPOSITORY`, then `make .venv` there, and call it in that folder\n"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Call a sub-command; return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] not in COMMANDS:
        parser().parse_args(words or ["--help"])
        return 2  # not reached: no other word is valid
    here = clone_of(Path.cwd())
    if here not in (None, ROOT):
        file = str(here / "chunk_grpo" / "__main__.py")
        os.execv(sys.executable, [sys.executable, "-P", file, *words])
    name, command = words[0], COMMANDS[words[0]]
    if command.module.startswith("infra.") and clone_of(ROOT) is None:
        sys.stderr.write(NEEDS_A_CLONE.format(name=name))
        return 2
    use_own_programs()
    return call(name, words[1:])


def call(name: str, words: Sequence[str]) -> int:
    """Call a sub-command with its own words; return its exit code, that of the error if a user can mend it."""
    module = module_of(name)
    from chunk_grpo.errors import ChunkGrpoError, Stopped  # here: `module_of` makes Python import this clone

    try:
        code: int = module.main(words)
    except (ChunkGrpoError, Stopped) as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    return code


def parser() -> argparse.ArgumentParser:
    """Parser of the first word, with one line for each sub-command."""
    own = argparse.ArgumentParser(
        prog="chunk-grpo", description="Tune text-to-image models with GRPO, and measure whether it helped."
    )
    commands = own.add_subparsers(metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        commands.add_parser(name, help=command.help)
    return own


def module_of(name: str) -> Any:
    """Import the module of a sub-command."""
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    return importlib.import_module(COMMANDS[name].module)


def clone_of(folder: Path) -> Path | None:
    """The clone that holds the folder, or None."""
    for each in (folder, *folder.parents):
        if all((each / name).exists() for name in ("dvc.yaml", "infra", "chunk_grpo/__main__.py")):
            return each.resolve()
    return None


def use_own_programs() -> None:
    """Let child processes find dvc, prefect and python beside this Python, and send no usage statistics."""
    own = str(Path(sys.executable).parent)
    path = os.environ.get("PATH", os.defpath).split(os.pathsep)
    os.environ["PATH"] = os.pathsep.join([own, *(each for each in path if each != own)])
    for name, value in {
        "DO_NOT_TRACK": "1",  # Prefect's client and Hugging Face's hub
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DVC_NO_ANALYTICS": "1",
    }.items():
        os.environ.setdefault(name, value)


if __name__ == "__main__":
    sys.exit(main())
