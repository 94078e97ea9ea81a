"""Spread of the reward by the step that draws noise: `python -m benchmarks.studies.reward_spread CHECKOUT`, a minute.

TempFlow-GRPO (arXiv 2508.04324), Figs. 1 and 4: from an ODE run of the base model children branch off at one noisy
step, and the ODE takes each to its image. The table has the mean, over prompts, of the standard deviation of each
scorer within the children of a prompt, beside the noise of the step and the weights of Eq. (8) there.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from benchmarks.studies.finished_run import FinishedRun, finished_run, parser_of_study
from benchmarks.tables import print_table, write_found
from chunk_grpo.core.branching import rollout_branches
from chunk_grpo.core.rollout import sample_noise
from chunk_grpo.core.step_weights import noise_weights
from chunk_grpo.progress import Meter
from chunk_grpo.reporting.statistics import crossed_interval
from chunk_grpo.seeding import generator


def main(options: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    parser = parser_of_study(__doc__, "reward_spread")
    parser.add_argument("--prompts", type=int, default=48, help="number of held-out prompts (default: 48)")
    parser.add_argument("--children", type=int, default=8, help="images of a prompt and step (default: 8)")
    arguments = parser.parse_args(options)
    with finished_run(arguments.checkout) as run:
        times, noise = run.grid.times, run.grid.transition_stds()
        spreads = measure(run, arguments.prompts, arguments.children)
    weights = noise_weights(noise)
    rows = []
    for step in range(len(noise)):
        found = [crossed_interval(values[step][None]) for values in spreads.values()]
        cells = [f"{each.mean:.3f} ({each.low:.3f} to {each.high:.3f})" for each in found]
        rows.append([str(step), f"{times[step]:.3f}", f"{noise[step]:.3f}", f"{weights[step]:.2f}", *cells])
    print_table(
        f"Standard deviation within {arguments.children} children of {arguments.prompts} prompts, 95 % interval",
        ("step", "t", "noise", "weight, Eq. (8)", *spreads),
        rows,
    )
    means = {name: values.mean(axis=1) for name, values in spreads.items()}
    ranks = {name: float(stats.spearmanr(noise.numpy(), values).statistic) for name, values in means.items()}
    title = "Rank correlation of spread and noise over the steps"
    print_table(title, tuple(ranks), [[f"{rank:.2f}" for rank in ranks.values()]])
    spread = {name: values.tolist() for name, values in means.items()}
    steps = {"times": times.tolist(), "noise": noise.tolist()}
    write_found(arguments.json, **steps, spread=spread, **{"rank correlation": ranks})
    return 0


def measure(run: FinishedRun, prompts: int, children: int) -> dict[str, NDArray[np.float64]]:
    """Standard deviation of each scorer within the children of a step, [N, P].

    There are P prompts, with `children` at each prompt and step.
    """
    base, grid = run.model.base, run.grid
    steps, count = range(grid.num_sde_steps), min(prompts, len(run.prompts))
    found: dict[str, list[NDArray[np.float64]]] = {name: [] for name in run.reward.weights}
    with Meter("branching", count) as meter:
        for row in range(count):
            one = run.prompts.rows([row])
            name, conditioning = one.ids[0], one.conditioning.to(base.device)
            made = rollout_branches(
                lambda x, t, rows, c=conditioning: base.velocity(x, t, c.rows(rows)),  # type: ignore[misc]
                sample_noise((1, *base.latent_shape), [generator("spread", name, "start")]).to(base.device),
                grid.times,
                grid.noise,
                steps,
                children,
                lambda _, step, child, name=name: generator("spread", name, step, child),  # type: ignore[misc]
                grid.sampler,
            )
            finals = torch.cat([branch.finals[0] for branch in made.branches])
            for scorer, values in run.scores(finals, [row] * len(finals)).items():
                found[scorer].append(values.reshape(len(steps), children).std(axis=1, ddof=1))
            meter.advance()
    return {name: np.stack(values, axis=1) for name, values in found.items()}


if __name__ == "__main__":
    sys.exit(main())
