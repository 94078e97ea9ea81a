"""Run chunk-grpo/full and chunk-grpo/ablations concurrently with the same inputs, two GPU workers and one DVC cache.

python -m tests.drills.at_once
"""

import sys
import time
from pathlib import Path

import yaml
from rich.console import Console

from infra.local_prefect import stop_on_signals
from tests.drills.command import DrillError, drill_parser, run_drill
from tests.drills.watch import Watch, damaged_objects, load, serving


def main() -> int:
    """Run the drill; return exit status 1 if it fails."""
    parser = drill_parser("at_once", __doc__)
    parser.add_argument("--preset", default="smoke")
    preset = parser.parse_args().preset
    stop_on_signals()

    def drill(folder: Path, console: Console) -> str:
        with serving(folder / "repository", gpu_workers=2) as watch:
            start = time.monotonic()
            full = watch.start("chunk-grpo/full", preset=preset)
            both = [full, watch.start("chunk-grpo/ablations", presets=[preset])]
            return f"{check(watch, both)} {time.monotonic() - start:.1f} s; {load()}"

    return run_drill(drill)


def check(watch: Watch, runs: list[str]) -> str:
    """Check that both runs complete with equal results, and that each stage was computed by only one of them."""
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
