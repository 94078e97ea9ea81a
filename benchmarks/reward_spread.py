"""Spread of the reward by the step that draws noise: `python -m benchmarks.reward_spread CHECKOUT`, a minute.

TempFlow-GRPO (arXiv 2508.04324), Figs. 1 and 4: from an ODE run of the base model children branch off at one noisy
step, and the ODE takes each to its image. The table has the mean, over prompts, of the standard deviation of each
scorer within the children of a prompt, beside the noise of the step and the weights of Eq. (8) there.
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
from scipy import stats
from torch import Tensor

from benchmarks.finished_run import FinishedRun, finished_run
from benchmarks.tables import machine, print_table
from chunk_grpo.core.branching import RowVelocity, rollout_branches
from chunk_grpo.core.rollout import sample_noise
from chunk_grpo.core.sde import Sampler, step_noise
from chunk_grpo.core.step_weights import noise_weights
from chunk_grpo.families.prompts import PromptSet
from chunk_grpo.progress import Meter
from chunk_grpo.reporting.statistics import crossed_interval
from chunk_grpo.seeding import generator
from stages._times import times_of


def main(options: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    arguments = _parser().parse_args(options)
    out = arguments.json.resolve()
    with finished_run(arguments.checkout) as run, torch.no_grad():
        sampling = run.params.sampling
        times = times_of(sampling, lambda: run.base)
        strengths, sampler = step_noise(sampling.sde, times, sampling.eta)
        noise = sampler.std(times[:-2], times[1:-1], strengths)
        spreads = measure(run, times, (strengths, sampler), arguments.prompts, arguments.children)
    weights = noise_weights(noise)
    rows = []
    for step in range(len(noise)):
        cells = []
        for values in spreads.values():
            interval = crossed_interval(values[step][None])
            cells.append(f"{interval.mean:.3f} ({interval.low:.3f} to {interval.high:.3f})")
        rows.append([str(step), f"{times[step]:.3f}", f"{noise[step]:.3f}", f"{weights[step]:.2f}", *cells])
    print_table(
        f"Standard deviation within {arguments.children} children of {arguments.prompts} prompts, 95 % interval",
        ("step", "t", "noise", "weight, Eq. (8)", *spreads),
        rows,
    )
    means = {name: values.mean(axis=1) for name, values in spreads.items()}
    ranks = {name: float(stats.spearmanr(noise.numpy(), values).statistic) for name, values in means.items()}
    print_table(
        "Rank correlation of spread and noise over the steps",
        tuple(ranks),
        [[f"{r:.2f}" for r in ranks.values()]],
    )
    record = {
        "machine": machine(),
        "times": times.tolist(),
        "noise": noise.tolist(),
        "spread": {name: values.tolist() for name, values in means.items()},
        "rank correlation": ranks,
    }
    out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


def measure(
    run: FinishedRun, times: Tensor, noise: tuple[Tensor, Sampler], prompts: int, children: int
) -> dict[str, NDArray[np.float64]]:
    """Standard deviation of each scorer within the children of a step, [N, P].

    `times` is the grid [S + 1]; `noise` has the noise strength of each noisy step [N], and the sampler of these steps.
    There are P prompts, with `children` at each prompt and step.
    """
    base, (strengths, sampler) = run.base, noise
    steps = range(len(strengths))
    found: dict[str, list[list[float]]] = {name: [[] for _ in steps] for name in run.reward.weights}
    with Meter("branching", min(prompts, len(run.prompts))) as meter:
        for row in range(min(prompts, len(run.prompts))):
            one = run.prompts.rows([row])
            start = sample_noise((1, *base.latent_shape), [generator("spread", one.ids[0], "start")])
            made = rollout_branches(
                _velocity(run, one),
                start.to(base.device),
                times,
                strengths,
                steps,
                children,
                lambda _, step, child, name=one.ids[0]: generator("spread", name, step, child),  # type: ignore[misc]
                sampler,
            )
            finals = torch.cat([branch.finals[0] for branch in made.branches])
            scores = run.scores(finals, [row] * len(finals))
            for name, values in scores.items():
                for step, group in zip(steps, values.reshape(len(steps), children), strict=True):
                    found[name][step].append(float(group.std(ddof=1)))
            meter.advance()
    return {name: np.asarray(values) for name, values in found.items()}


def _velocity(run: FinishedRun, prompts: PromptSet) -> RowVelocity:
    conditioning = prompts.conditioning.to(run.base.device)

    def velocity(x: Tensor, t: Tensor, rows: Tensor) -> Tensor:
        return run.base.velocity(x, t, conditioning.rows(rows))

    return velocity


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path, help="checkout with a finished run")
    parser.add_argument("--prompts", type=int, default=48, help="number of held-out prompts (default: 48)")
    parser.add_argument("--children", type=int, default=8, help="images of a prompt and step (default: 8)")
    parser.add_argument("--json", type=Path, default=Path("reward_spread.json"), help="result to write")
    return parser


if __name__ == "__main__":
    sys.exit(main())
