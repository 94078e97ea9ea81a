"""Temporal dynamics before and after training: `python -m benchmarks.trained_profiles CHECKOUT`, a minute.

Chunk-GRPO (arXiv 2510.21583 v1), Figs. 3 and 10, and its question of SDE and ODE. CHECKOUT has a finished run. The
relative L1 distance of Eq. (15) is measured for the base model and for the policy of each training seed, on held-out
prompts with the same noise, under the SDE of training and under the ODE. The tables have the curves, the guided plan
and the weights of Eq. (16) that would follow from each.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.finished_run import FinishedRun, finished_run
from benchmarks.tables import machine, print_table
from chunk_grpo.core.chunk_sampling import chunk_weights
from chunk_grpo.core.chunking import guided_plan, listed_plan
from chunk_grpo.families.base import Family
from chunk_grpo.parallel import Workers
from chunk_grpo.reporting.comparisons import interval_text, signed
from chunk_grpo.reporting.statistics import crossed_interval
from stages.profile_l1 import profile_rows

SAMPLERS = ("sde", "ode")
LISTED = (2, 3, 4, 7)
"""The paper's sizes for 16 noisy steps."""


def main(options: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    arguments = _parser().parse_args(options)
    out = arguments.json.resolve()
    with finished_run(arguments.checkout) as run, torch.no_grad():
        base = {name: values[None] for name, values in profiles(run.base, run, arguments.prompts).items()}
        of_seeds = []
        for seed in run.params.train.seeds:
            with run.policy(arguments.variant, seed) as tuned:
                of_seeds.append(profiles(tuned, run, arguments.prompts))
        captions = run.prompts.texts[: arguments.prompts]
        trainable = run.params.sampling.num_sde_steps
    tuned_all = {name: np.stack([each[name] for each in of_seeds]) for name in SAMPLERS}
    rows = []
    for step in range(base["sde"].shape[2]):
        cells = []
        for name in SAMPLERS:
            change = crossed_interval(
                np.log(tuned_all[name][:, :, step] / base[name][:, :, step]), captions=captions
            )
            cells += [
                f"{base[name][:, :, step].mean():.3f}",
                f"{signed(change.mean)} ({interval_text(change)})",
            ]
        rows.append([str(step), *cells])
    columns = ("step", *(f"{name}{what}" for name in SAMPLERS for what in (", base", ", log change (95 %)")))
    print_table("Relative L1 distance, before and after training", columns, rows)
    plans = []
    for title, found in (("base", base), ("tuned", tuned_all)):
        for name in SAMPLERS:
            curve = found[name].mean(axis=(0, 1))[:trainable].tolist()
            plans.append([f"{title}, {name}", *plan_of(curve)])
    print_table(
        "What a profile leads to", ("profile", "guided plan", "Eq. (16) for the listed chunks"), plans
    )
    record = {
        "machine": machine(),
        "base": {name: values.mean(axis=(0, 1)).tolist() for name, values in base.items()},
        "tuned": {name: values.mean(axis=(0, 1)).tolist() for name, values in tuned_all.items()},
    }
    out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


def profiles(family: Family, run: FinishedRun, count: int) -> dict[str, NDArray[np.float64]]:
    """Sampler to relative L1 distances [prompts, steps], means over the profile's noise seeds."""
    prompts = run.prompts.rows(range(min(count, len(run.prompts))))
    place = {name: row for row, name in enumerate(prompts.ids)}
    steps = run.params.sampling.num_steps
    sums = {name: np.zeros((len(prompts), steps)) for name in SAMPLERS}
    for row in profile_rows(family, prompts, run.params, Workers()):
        sums[str(row["sampler"])][place[str(row["prompt_id"])], int(row["step"])] += float(row["l1_rel"])
    return {name: values / run.params.profile.num_seeds for name, values in sums.items()}


def plan_of(curve: Sequence[float]) -> tuple[str, str]:
    """The guided plan of a profile, and the weights that it gives to the paper's chunks, as text."""
    chunks = min(len(LISTED), len(curve) // 2)
    weights: list[float] = []
    if sum(LISTED) == len(curve):
        weights = chunk_weights(curve, listed_plan(LISTED, len(curve))).tolist()
    return str(list(guided_plan(curve, chunks).sizes)), ", ".join(f"{weight:.2f}" for weight in weights)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path, help="checkout with a finished run")
    parser.add_argument("--variant", default="chunk-ws", help="variant whose policies are profiled")
    parser.add_argument("--prompts", type=int, default=48, help="number of held-out prompts (default: 48)")
    parser.add_argument("--json", type=Path, default=Path("trained_profiles.json"), help="result to write")
    return parser


if __name__ == "__main__":
    sys.exit(main())
