"""Temporal dynamics before and after training: `python -m benchmarks.studies.trained_profiles CHECKOUT`, a minute.

Chunk-GRPO (arXiv 2510.21583 v1), Figs. 3 and 10, and its question of SDE and ODE. CHECKOUT has a finished run. The
relative L1 distance of Eq. (15) is measured for the base model and for the policy of each training seed, on held-out
prompts with the same noise, under the SDE of training and under the ODE. The tables have the curves, the guided plan
and the weights of Eq. (16) that would follow from each.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.studies.finished_run import FinishedRun, finished_run, parser_of_study
from benchmarks.tables import print_table, write_found
from chunk_grpo.core.chunk_sampling import chunk_weights
from chunk_grpo.core.chunking import guided_plan, listed_plan
from chunk_grpo.families.base import Family
from chunk_grpo.library.profiles import profiled
from chunk_grpo.parallel import Workers
from chunk_grpo.reporting.comparisons import interval_text, signed
from chunk_grpo.reporting.statistics import crossed_interval

SAMPLERS = ("sde", "ode")
LISTED = (2, 3, 4, 7)
"""The paper's sizes for 16 noisy steps."""


def main(options: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    parser = parser_of_study(__doc__, "trained_profiles")
    parser.add_argument("--variant", default="chunk-ws", help="variant whose policies are profiled")
    parser.add_argument("--prompts", type=int, default=48, help="number of held-out prompts (default: 48)")
    arguments = parser.parse_args(options)
    with finished_run(arguments.checkout) as run:
        base = {
            name: values[None] for name, values in profiles(run.model.base, run, arguments.prompts).items()
        }
        of_seeds = []
        for seed in run.params.train.seeds:
            with run.policy(arguments.variant, seed) as policy:
                of_seeds.append(profiles(policy, run, arguments.prompts))
        captions = run.prompts.texts[: arguments.prompts]
        trainable = run.params.sampling.num_sde_steps
    tuned = {name: np.stack([each[name] for each in of_seeds]) for name in SAMPLERS}
    rows = []
    for step in range(base["sde"].shape[2]):
        cells = []
        for name in SAMPLERS:
            before, after = (found[name][:, :, step] for found in (base, tuned))
            change = crossed_interval(np.log(after / before), captions=captions)
            cells += [f"{before.mean():.3f}", f"{signed(change.mean)} ({interval_text(change)})"]
        rows.append([str(step), *cells])
    columns = ("step", *(f"{name}{what}" for name in SAMPLERS for what in (", base", ", log change (95 %)")))
    print_table("Relative L1 distance, before and after training", columns, rows)
    means = {
        title: {name: values.mean(axis=(0, 1)).tolist() for name, values in found.items()}
        for title, found in (("base", base), ("tuned", tuned))
    }
    plans = [
        [f"{title}, {name}", *plan_of(curve[:trainable])]
        for title, of in means.items()
        for name, curve in of.items()
    ]
    print_table(
        "What a profile leads to", ("profile", "guided plan", "Eq. (16) for the listed chunks"), plans
    )
    write_found(arguments.json, **means)
    return 0


def profiles(family: Family, run: FinishedRun, count: int) -> dict[str, NDArray[np.float64]]:
    """Sampler to relative L1 distances [prompts, steps], means over the profile's noise seeds."""
    settings = run.params.profile
    seeds = range(settings.seed, settings.seed + settings.num_seeds)
    prompts = run.prompts.rows(range(min(count, len(run.prompts))))
    batches = [
        curves.distances
        for curves in profiled(
            family, prompts, seeds, run.params.sampling, settings.batch_size, Workers.alone(), with_ode=True
        )
    ]
    return {
        name: torch.cat([batch[name].double() for batch in batches])
        .unflatten(0, (-1, len(seeds)))
        .mean(dim=1)
        .numpy()
        for name in SAMPLERS
    }


def plan_of(curve: Sequence[float]) -> tuple[str, str]:
    """The guided plan of a profile, and the weights that it gives to the paper's chunks, as text."""
    chunks = min(len(LISTED), len(curve) // 2)
    weights: list[float] = []
    if sum(LISTED) == len(curve):
        weights = chunk_weights(curve, listed_plan(LISTED, len(curve))).tolist()
    return str(list(guided_plan(curve, chunks).sizes)), ", ".join(f"{weight:.2f}" for weight in weights)


if __name__ == "__main__":
    sys.exit(main())
