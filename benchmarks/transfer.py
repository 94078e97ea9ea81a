"""Whether a chunk plan guided on one family serves the other: `python -m benchmarks.transfer`, about an hour.

For each family, a clone of this commit runs the toy preset to its relative L1 profile and its guided plan. Then it
trains two variants that differ in their boundaries alone: by the family's own plan, and by the other family's. Both
are compared on the training reward of held-out prompts, with the report's intervals, paired by training seed and
prompt. Number of steps and shift of the grid are the same for both families; the rest is each preset's.

It prints the profiles, the plans and a table of the comparison in Markdown, and writes them to the JSON file.
`--folder` keeps the clones, and the next call with it resumes; finished trainings are not repeated. Equal plans are not
trained. `--small` runs the smoke presets, to check the script.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dvc.utils.serialize import dump_yaml
from rich.console import Console

from benchmarks.clones import environment, make_clone
from benchmarks.tables import machine, print_table
from chunk_grpo.artifacts import read_table
from chunk_grpo.config import load_params
from chunk_grpo.orchestration.presets import composed, overridden
from chunk_grpo.reporting.comparisons import Comparison, interval_text, number, signed
from chunk_grpo.reporting.content import Content
from chunk_grpo.reporting.evidence import REWARD, Source
from chunk_grpo.reporting.inputs import Folders, read_evidence, settings_from
from chunk_grpo.reporting.series import profile_curve
from chunk_grpo.reporting.statistics import Interval

FAMILIES = ("flux", "sd3")
PRESETS = {"flux": "tiny", "sd3": "tiny-sd3"}
SMALL_PRESETS = {"flux": "smoke", "sd3": "smoke-sd3"}
OWN, OTHER, GUIDED = "own", "other", "guided"
STEPS, SHIFT = 17, 3.0
"""Steps and shift of both families' grid, so that a step has the same noise level in both."""
STDERR = 2
"""Place of DVC's output, so that standard output has the tables alone."""
COLUMNS = ("family", "plan", "boundaries", "training reward", "minus base", "95 % interval")


@dataclass(frozen=True)
class Found:
    """Profile and guided plan of a family."""

    profile: tuple[float, ...]
    """Mean relative L1 distance of each trainable step under the SDE, Eq. (15)."""
    plan: tuple[int, ...]
    """Sizes of the guided chunks."""


@dataclass(frozen=True)
class Outcome:
    """Training reward on held-out prompts of a family's policies."""

    base: Interval
    """Mean of the base."""
    own: Comparison
    """The policies trained with the family's own plan, against the base."""
    other: Comparison
    """Those trained with the other family's plan, against the base."""
    other_minus_own: Interval
    """Paired difference."""


@dataclass(frozen=True)
class Difference:
    """How far two profiles differ."""

    level: float
    """Geometric mean of the ratios, second to first."""
    shape: float
    """Largest ratio to `level`, up or down, minus 1. A constant factor changes neither the guided plan nor the
    weights of Eq. (16)."""
    step: int
    """Step of that ratio."""


def main(options: Sequence[str] | None = None) -> int:
    """Run, print, write; return the exit status."""
    arguments = _parser().parse_args(options)
    with _folder(arguments.folder) as folder:
        return run(folder, arguments)


def run(folder: Path, arguments: argparse.Namespace) -> int:
    """Profile both families; train and compare the policies, if the plans differ."""
    about = machine()
    clones = {family: make_clone(folder / family) for family in FAMILIES}
    for family, clone in clones.items():
        if status := repro(clone, arguments, family, {}, "chunk_boundaries"):
            return status
    found = {family: read_found(clone) for family, clone in clones.items()}
    apart = difference(*(found[family].profile for family in FAMILIES))
    print_profiles(found, apart)
    plans = {family: plans_of(family, found) for family in FAMILIES}
    result: dict[str, Any] = {
        "machine": about,
        "preset": {family: preset_of(family, arguments) for family in FAMILIES},
        "seeds": arguments.seeds,
        "iterations": arguments.iterations,
        "profiles_differ": asdict(apart),
        "plans_are_equal": len({values.plan for values in found.values()}) == 1,
        "families": {family: asdict(values) for family, values in found.items()},
    }
    if result["plans_are_equal"]:
        say("Each family's plan is the other's too: nothing was trained. `--chunks` takes another number.")
    else:
        for family, clone in clones.items():
            if status := repro(clone, arguments, family, plans[family]):
                return status
        outcomes = {family: read_outcome(clone) for family, clone in clones.items()}
        rows = [row for family in FAMILIES for row in lines(family, plans[family], outcomes[family])]
        print_table("Training reward on held-out prompts", COLUMNS, rows)
        for family, outcome in outcomes.items():
            result["families"][family] |= asdict(outcome)
    say(", ".join(f"{name} {value}" for name, value in about.items()))
    arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


def preset_of(family: str, arguments: argparse.Namespace) -> str:
    """Preset that a family runs, changed by `configure`."""
    return (SMALL_PRESETS if arguments.small else PRESETS)[family]


def plans_of(family: str, found: Mapping[str, Found]) -> dict[str, tuple[int, ...]]:
    """Sizes of the plans that a family trains with."""
    (other,) = (name for name in FAMILIES if name != family)
    return {OWN: found[family].plan, OTHER: found[other].plan}


def configure(
    clone: Path, arguments: argparse.Namespace, family: str, plans: Mapping[str, Sequence[int]]
) -> None:
    """Write params.yaml: the guided plan, and a variant for each listed plan."""
    preset = preset_of(family, arguments)
    params = composed(clone, preset)
    params["chunks"] = {"plans": {GUIDED: {"kind": GUIDED, "num_chunks": arguments.chunks}}}
    for name, sizes in plans.items():
        params["chunks"]["plans"][name] = {"kind": "listed", "sizes": list(sizes)}
    params["variants"] = {name: {"objective": "chunk", "plan": name} for name in (plans or [GUIDED])}
    overrides = [
        f"train.seeds={list(range(arguments.seeds))}",
        f"sampling.num_steps={STEPS}",
        f"sampling.shift={SHIFT}",
        f"generate.shift={SHIFT}",
    ]
    if arguments.iterations is not None:
        overrides.append(f"train.iterations={arguments.iterations}")
    changed = overridden(params, overrides, None, f"preset {preset}, changed")
    dump_yaml(str(clone / "params.yaml"), changed)


def repro(
    clone: Path,
    arguments: argparse.Namespace,
    family: str,
    plans: Mapping[str, Sequence[int]],
    *stages: str,
) -> int:
    """Run the pipeline, or what leads to some stages; return the exit status of DVC."""
    configure(clone, arguments, family, plans)
    command = [sys.executable, "-m", "dvc", "repro", *stages]
    return subprocess.run(command, cwd=clone, env=environment(clone), stdout=STDERR, check=False).returncode


def read_found(clone: Path) -> Found:
    """Profile and guided plan that a clone measured."""
    artifacts = clone / "artifacts"
    location = str(artifacts / "profile" / "l1_profile.parquet")
    curve = profile_curve(Source(location, read_table(location, "l1_profile")), "sde")
    sizes = json.loads((artifacts / "chunks" / "chunks.json").read_text(encoding="utf-8"))[GUIDED]
    return Found(tuple(curve.mean[: sum(sizes)]), tuple(sizes))


def read_outcome(clone: Path) -> Outcome:
    """What the report of a clone says."""
    folder = clone / "artifacts"
    places = Folders(
        prompts=str(folder / "prompts" / "evaluation.parquet"),
        profile=str(folder / "profile" / "l1_profile.parquet"),
        **{name: str(folder / name) for name in ("chunks", "train", "images", "scores", "runs")},
    )
    settings = settings_from(load_params(clone / "params.yaml"))
    content = Content(read_evidence(places, settings), settings)
    tuned = {c.variant: c for c in content.comparisons if (c.mode, c.measure) == ("tuned", REWARD)}
    (pair,) = content.pairs[REWARD]
    return Outcome(content.base[REWARD], tuned[OWN], tuned[OTHER], pair.difference)


def difference(first: Sequence[float], second: Sequence[float]) -> Difference:
    """Compare two profiles of the same steps."""
    logs = [math.log(b / a) for a, b in zip(first, second, strict=True)]
    level = sum(logs) / len(logs)
    step = max(range(len(logs)), key=lambda i: abs(logs[i] - level))
    return Difference(math.exp(level), math.exp(abs(logs[step] - level)) - 1, step)


def lines(family: str, plans: Mapping[str, Sequence[int]], outcome: Outcome) -> Iterator[list[str]]:
    """Rows of the table for one family."""
    yield [family, "base", "", number(outcome.base.mean), "", ""]
    for name, tuned in ((OWN, outcome.own), (OTHER, outcome.other)):
        rise = tuned.difference
        yield [
            family,
            name,
            str(list(plans[name])),
            number(tuned.mean),
            signed(rise.mean),
            interval_text(rise),
        ]
    gap = outcome.other_minus_own
    yield [family, "other minus own", "", "", signed(gap.mean), interval_text(gap)]


def print_profiles(found: Mapping[str, Found], apart: Difference) -> None:
    """Print both profiles step by step, how far they differ, and the plans."""
    first, second = FAMILIES
    pairs = zip(found[first].profile, found[second].profile, strict=True)
    rows = [[str(step), f"{a:.3f}", f"{b:.3f}", f"{b / a:.2f}"] for step, (a, b) in enumerate(pairs)]
    columns = ("step", first, second, f"{second} / {first}")
    print_table("Mean relative L1 distance", columns, rows)
    say(
        f"The profile of {second} is {apart.level:.2f} times that of {first}; apart from this factor they differ most "
        f"at step {apart.step}, by {apart.shape:.0%}."
    )
    for family, values in found.items():
        say(f"Guided plan of {family}: {list(values.plan)}")


def say(text: str) -> None:
    """Print a line, unbroken."""
    Console(highlight=False, soft_wrap=True).print(text, markup=False)


@contextmanager
def _folder(given: Path | None) -> Iterator[Path]:
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="transfer-") as scratch:
        yield Path(scratch)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=6, help="training seeds of each plan (default: 6)")
    parser.add_argument("--iterations", type=int, help="iterations of a training (default: the preset's)")
    parser.add_argument("--chunks", type=int, default=4, help="chunks of a guided plan (default: 4)")
    parser.add_argument("--small", action="store_true", help="run the smoke presets, to check the script")
    parser.add_argument("--folder", type=Path, help="for the clones, kept (default: temporary)")
    parser.add_argument("--json", type=Path, default=Path("transfer.json"), help="result to write")
    return parser


if __name__ == "__main__":
    sys.exit(main())
