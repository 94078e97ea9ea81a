"""Run chunk-grpo/full and chunk-grpo/ablations concurrently with the same inputs, two GPU workers and one DVC cache.

python -m tests.drills.at_once
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import yaml
from rich.console import Console

from infra.local_prefect import stop_on_signals
from tests.drills.watch import DrillError, Watch, damaged_objects, load, serving


def main() -> int:
    """Run the drill; return exit status 1 if it fails."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.drills.at_once",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--preset", default="smoke")
    preset = parser.parse_args().preset
    console = Console(highlight=False, soft_wrap=True)
    stop_on_signals()
    with tempfile.TemporaryDirectory(prefix="chunk-grpo-drill-") as folder:
        try:
            with serving(Path(folder, "repository"), gpu_workers=2) as watch:
                start = time.monotonic()
                runs = [
                    watch.start("chunk-grpo/full", preset=preset),
                    watch.start("chunk-grpo/ablations", presets=[preset]),
                ]
                told = check(watch, runs)
                console.print(f"{told} {time.monotonic() - start:.1f} s; {load()}")
        except DrillError as error:
            console.print(f"error: {error}", style="bold red", markup=False)
            return 1
    return 0


def check(watch: Watch, runs: list[str]) -> str:
    """Check that both runs complete with equal results, and that each stage was computed by only one of them.

    Raises:
        DrillError: A check failed.
    """
    for run in runs:
        ended = watch.ended(run, 900)
        if ended["state_type"] != "COMPLETED":
            raise DrillError(f"{ended['state_type']}: {ended['state']['message']}")
    tables = [watch.outcomes(run) for run in runs]
    computed = {stage: [table[stage] for table in tables].count("ran") for stage in tables[0]}
    if wrong := {stage: count for stage, count in computed.items() if count != 1}:
        raise DrillError(f"not computed once: {wrong}")
    clones = [next(watch.prefect.home.glob(f"runs/*-{run}-1")) for run in runs]
    locks = [yaml.safe_load((clone / "dvc.lock").read_text(encoding="utf-8")) for clone in clones]
    if locks[0] != locks[1]:
        raise DrillError("the two runs did not end with the same results")
    if damaged := damaged_objects(watch.prefect.root / ".dvc" / "cache"):
        raise DrillError(f"damaged: {', '.join(map(str, damaged))}")
    shares = [list(table.values()).count("ran") for table in tables]
    return f"{len(computed)} stages, each computed once ({shares[0]} by full, {shares[1]} by ablations), in"


if __name__ == "__main__":
    sys.exit(main())
