"""Prove on this machine that a preset works, and write a page and a JSON file that you can send back.

chunk-grpo accept [--preset NAME] [--reference imagereward=FOLDER]      (make accept PRESET=night-24gb)

It reads params.yaml (or composes a preset), the commit of this clone, and asks the driver for its cards. It writes
OUT/acceptance.md and OUT/acceptance.json; OUT/log.txt has the lines of the stages, and OUT/workspace, a clone without
your uncommitted edits of code, all results, which may be deleted: the next call makes a new one. OUT/curve-COMMIT has
the training of the step `curve`; the next call goes on with it.

Steps, each `pass`, `fail` or `not checked`, with its seconds and numbers; after a failure the others still run:

    machine       driver, torch, cards; disk and host memory against the plan
    settings      the stages before any long one: weights, adapter, prompts, packages and servers of scorers
    plan          planned seconds and memory of an iteration, and what cannot work
    references    scorers against published scores, where benchmarks/reference_scores.py has them
    run           a small copy of the preset, from prompts to the report: the first variant, three iterations
    plan held     measured seconds and memory of `run` against its plan
    ratios        log-probabilities of rollout and update against the clip range
    resume        the training of `run`, stopped by SIGTERM after an iteration and resumed: the same bytes
    processes     the training of `run` with another number of GPUs: the same rewards
    curve         with --curve: a whole training, for hours, beside a published learning curve of the preset

Exit code: 0, or 1 if a step failed; 2 for settings that cannot be read.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from chunk_grpo.artifacts import write_json, write_text
from chunk_grpo.config import parse_params
from chunk_grpo.errors import ChunkGrpoError, ConfigError, Stopped
from chunk_grpo.orchestration.commands import require_clone
from chunk_grpo.orchestration.presets import overridden
from chunk_grpo.planning.machines import GPUS
from chunk_grpo.stopping import STOP
from infra.accept_page import page
from infra.accept_steps import KINDS, STEPS
from infra.accept_trial import Found, Trial, kind_of, machine_of, smaller, visible_cards
from infra.command_line import command_parser, positive, raw_params

ROOT = Path(__file__).resolve().parents[1]
FORMAT = "chunk_grpo.acceptance/1"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the steps and write the page; return the exit code."""
    options = parser().parse_args(argv)
    require_clone(ROOT)
    try:
        with STOP.raised():
            return _accept(options)
    except Stopped as stop:
        name = str(stop).partition(".")[0]
        raise Stopped(f"{name}; finished steps are on the page; the next call begins anew, but for a curve") from None


def _accept(options: argparse.Namespace) -> int:
    references = _references(options.reference)
    cards = visible_cards()
    raw, source = raw_params(ROOT, options.preset, ROOT / "params.yaml")
    params = parse_params(raw, source)
    variant = next(iter(params.variants))
    changes = smaller(params, len(cards) or params.train.cpu_processes)
    small = overridden(raw, changes, [variant], f"{source}, made smaller")
    out = options.out or ROOT / "accept" / params.composed_from
    out.mkdir(parents=True, exist_ok=True)
    if (out / "log.txt").exists():  # otherwise it is not ours, and refused later
        shutil.rmtree(out / "workspace", ignore_errors=True)
    planned = machine_of(cards, options.gpu, options.tflops)
    with (out / "log.txt").open("w", encoding="utf-8", buffering=1) as log:
        knows_rate = bool(options.gpu or options.tflops or (cards and kind_of(cards[0])))
        given = references, options.hpsv3_python, knows_rate
        trial = Trial(ROOT, out.resolve(), params, raw, small, cards, planned, log, *given, options.curve)
        found: dict[str, Any] = {
            "format": FORMAT,
            "preset": params.composed_from,
            "commit": trial.commit,
            "variant": variant,
            "changes": changes,
            "steps": [],
            "left": list(STEPS),
        }
        _write(found, out)
        for step in run_steps(trial):
            found["steps"].append(step)
            found["left"].remove(step["name"])
            sys.stdout.write(f"{step['name']}: {step['outcome']}, {step['seconds']:.0f} s. {step['said']}\n")
            sys.stdout.flush()
            _write(found, out)
    sys.stdout.write(f"\n{out / 'acceptance.md'}\n{out / 'acceptance.json'}\n")
    return int(any(step["outcome"] == "fail" for step in found["steps"]))


def _write(found: Mapping[str, Any], out: Path) -> None:
    """Write both files: after each step, so that a killed call leaves what it found, and names what is left."""
    write_json(found, str(out / "acceptance.json"))
    write_text(page(found), str(out / "acceptance.md"))


def run_steps(trial: Trial) -> Iterator[dict[str, Any]]:
    """Run the steps in order; what needs a step that did not pass is not checked."""
    outcomes: dict[str, str] = {}
    for name, (check, needs) in STEPS.items():
        started = time.monotonic()
        missing = [each for each in needs if outcomes[each] != "pass"]
        skipped = Found("not checked", f"It needs the step {missing[0]!r}.") if missing else None
        found = skipped or found_by(check, trial)
        outcomes[name] = found.outcome
        yield {"name": name, "seconds": time.monotonic() - started, **asdict(found)}


def found_by(check: Callable[[Trial], Found], trial: Trial) -> Found:
    """The result of a step; any error is its failure, since other steps still run."""
    try:
        return check(trial)
    except Exception as error:
        trial.say(traceback.format_exc())
        first, *lines = str(error).splitlines() or [type(error).__name__]
        sentences = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]  # of a stage
        is_explained = isinstance(error, ChunkGrpoError) or bool(sentences)
        advice = [] if is_explained else ["see log.txt; a traceback of chunk-grpo's own code is a bug"]
        said = ": ".join([first.rstrip("."), *sentences[-1:], *advice]) if sentences or advice else first
        return Found("fail", said, {"last lines": [first, *lines]})


def _references(given: Sequence[str]) -> dict[str, Path]:
    found = {}
    for text in given:
        kind, _, folder = text.partition("=")
        if kind not in KINDS or not Path(folder).is_dir():
            raise ConfigError(
                f"--reference: must be KIND=FOLDER, a kind of {', '.join(KINDS)} and an existing folder, got {text!r}"
            )
        found[kind] = Path(folder).resolve()
    return found


def parser() -> argparse.ArgumentParser:
    own = command_parser("accept", __doc__)
    own.add_argument("--preset", help="preset of conf/ (default: params.yaml, with its edits)")
    own.add_argument("--out", type=Path, help="folder of the results (default: accept/PRESET)")
    own.add_argument("--gpu", choices=sorted(GPUS), help="kind of GPU in the plan (default: by the driver)")
    own.add_argument(
        "--tflops", type=positive, help="one rate in TFLOP/s for all operations, of a kind of GPU that the plan lacks"
    )
    own.add_argument(
        "--reference",
        action="append",
        default=[],
        metavar="KIND=FOLDER",
        help="images whose scores are known, as benchmarks/reference_scores.py describes them",
    )
    own.add_argument("--curve", action="store_true", help="train whole too, and compare with a published curve")
    own.add_argument("--hpsv3-python", type=Path, help="interpreter with the package hpsv3 1.0.0")
    return own
