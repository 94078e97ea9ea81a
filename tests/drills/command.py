"""The command line of a drill, and the environment in which it runs stages."""

import argparse
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from tests.waiting import TooLateError


class DrillError(Exception):
    """A check of a drill failed."""


def drill_parser(name: str, doc: str | None) -> argparse.ArgumentParser:
    """Parser of a drill's command line."""
    form = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(prog=f"python -m tests.drills.{name}", description=doc, formatter_class=form)


def run_drill(drill: Callable[[Path, Console], str | None]) -> int:
    """Run a drill in a new folder, and print what it returns; exit status 1 if it fails."""
    console = Console(highlight=False, soft_wrap=True)
    with tempfile.TemporaryDirectory(prefix="chunk-grpo-drill-") as folder:
        try:
            result = drill(Path(folder), console)
        except (DrillError, TooLateError) as error:
            console.print(f"error: {error}", style="bold red", markup=False)
            return 1
    if result:
        console.print(result)
    return 0


def stage_environment(programs: Path, **more: str) -> dict[str, str]:
    """Environment of `dvc repro` in a checkout, with a folder of programs first on PATH."""
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    more |= {"PATH": path, "DVC_NO_ANALYTICS": "1", "OMP_NUM_THREADS": "1"}
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | more
