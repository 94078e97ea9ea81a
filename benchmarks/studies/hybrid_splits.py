"""Where hybrid inference changes models: `python -m benchmarks.studies.hybrid_splits CHECKOUT --variant chunk-ws`.

CHECKOUT has a finished run. For each training seed, shift of the time grid and split, images of the held-out prompts
are drawn with the same noise: first by the policy and then by the base model (as in App. B.3), or in the other order.
The first table has the mean of each scorer and its paired difference from the base model on the same grid.

Hybrid inference also uses less of the policy. So the policy is drawn at several strengths s too, for all steps, with
weights base + s (tuned - base). The second table has hybrid inference, as in `generate`, minus the policy at each one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.studies.finished_run import FinishedRun, finished_run, parser_of_study
from benchmarks.tables import print_table, write_found
from chunk_grpo.core.flow import time_grid
from chunk_grpo.core.rollout import rollout_ode, sample_noise
from chunk_grpo.families.base import Family, velocity_function
from chunk_grpo.generation import image_seed
from chunk_grpo.progress import Meter
from chunk_grpo.reporting.comparisons import interval_text, signed
from chunk_grpo.reporting.statistics import crossed_interval

TUNED_FIRST, BASE_FIRST, AT_STRENGTH = "tuned first", "base first", "tuned at strength"
BATCH = 72

Cell = tuple[float, str, float]
"""(shift, order, steps of the first model); with AT_STRENGTH the strength instead."""
Found = Mapping[Cell, Mapping[str, NDArray[np.float64]]]


def main(options: Sequence[str] | None = None) -> int:
    """Draw, score, print, write."""
    parser = parser_of_study(__doc__, "hybrid_splits")
    parser.add_argument("--variant", default="chunk-ws", help="variant whose policies are used")
    parser.add_argument("--shifts", type=float, nargs="+", default=[1.0, 3.0], help="shifts of the time grid")
    parser.add_argument("--parts", type=int, default=5, help="parts of the steps (default: 5)")
    strengths = (0.25, 0.5, 0.75, 1.0)
    parser.add_argument("--strengths", type=float, nargs="*", default=strengths, help="shares of the change")
    arguments = parser.parse_args(options)
    with finished_run(arguments.checkout) as run:
        if arguments.strengths and run.params.train.lora is not None:
            parser.error("--strengths: an adapter is not scaled here; give the option without a value")
        values = measure(run, arguments.variant, arguments.shifts, arguments.parts, arguments.strengths)
        captions, generate = run.prompts.texts, run.params.generate
    rows, found = [], []
    for (shift, order, first), scores in values.items():
        if not order:
            continue
        texts = []
        for scorer, matrix in scores.items():
            rise = crossed_interval(matrix - values[shift, "", 0][scorer], captions=captions)
            texts.append(f"{matrix.mean():.3f}, {signed(rise.mean)} ({interval_text(rise)})")
            cell = {"shift": shift, "order": order, "first": first, "scorer": scorer, "mean": matrix.mean()}
            found.append({**cell, "difference": rise.mean, "low": rise.low, "high": rise.high})
        rows.append([f"{shift:g}, {order}", f"{first:g}", *texts])
    scorers = tuple(next(iter(values.values())))
    print_table(
        f"Hybrid inference with {arguments.variant}: mean, difference from the base, 95 % interval",
        ("shift, order", "steps of the first, or strength", *scorers),
        rows,
    )
    hybrid = generate.num_steps - generate.base_steps
    print_table(
        f"Hybrid inference, {hybrid} steps tuned, minus the policy for all steps at a strength",
        ("shift", "strength", *scorers),
        beside_strengths(values, hybrid, captions),
    )
    write_found(arguments.json, cells=found)
    return 0


def beside_strengths(values: Found, hybrid: int, captions: Sequence[str]) -> list[list[str]]:
    """Rows of the paired differences of hybrid inference from the policy at each strength, by scorer."""
    rows = []
    for (shift, order, strength), scores in values.items():
        if order == AT_STRENGTH:
            mixed = values[shift, TUNED_FIRST, hybrid]
            found = [crossed_interval(mixed[name] - scores[name], captions=captions) for name in scores]
            rows.append(
                [f"{shift:g}", f"{strength:g}", *(f"{signed(i.mean)} ({interval_text(i)})" for i in found)]
            )
    return rows


def measure(
    run: FinishedRun, variant: str, shifts: Sequence[float], parts: int, strengths: Sequence[float]
) -> dict[Cell, dict[str, NDArray[np.float64]]]:
    """Scores [seeds, prompts] of every cell; (shift, "", 0) is the base alone, with one row.

    The steps are divided into `parts` equal parts; a split is between two of them, or that of `generate`.
    """
    base, seeds = run.model.base, run.params.train.seeds
    steps, base_steps = run.params.generate.num_steps, run.params.generate.base_steps
    splits = sorted({*(steps * part // parts for part in range(1, parts)), steps - base_steps} - {0, steps})
    of_base_weights = {name: weight.clone() for name, weight in base.transformer.named_parameters()}
    found: dict[Cell, dict[str, list[NDArray[np.float64]]]] = {}

    def keep(cell: Cell, latents: Tensor) -> None:
        for scorer, values in run.scores(latents, range(len(run.prompts))).items():
            found.setdefault(cell, {}).setdefault(scorer, []).append(values)

    with Meter("drawing", len(shifts) * (1 + len(seeds))) as meter:
        for shift in shifts:
            times = time_grid(steps, shift)
            of_base = _states(base, run, times)
            keep((shift, "", 0), of_base[:, -1])
            meter.advance()
            for seed in seeds:
                with run.policy(variant, seed) as tuned:
                    of_tuned = _states(tuned, run, times)
                    after = {at: _states(tuned, run, times, of_base[:, at], at)[:, -1] for at in splits}
                    for strength in strengths:
                        with scaled(tuned.transformer, of_base_weights, strength):
                            keep((shift, AT_STRENGTH, strength), _states(tuned, run, times)[:, -1])
                keep((shift, TUNED_FIRST, steps), of_tuned[:, -1])
                for at in splits:
                    keep((shift, TUNED_FIRST, at), _states(base, run, times, of_tuned[:, at], at)[:, -1])
                    keep((shift, BASE_FIRST, at), after[at])
                meter.advance()
    return {
        cell: {name: np.stack(rows) for name, rows in scores.items()}
        for cell, scores in sorted(found.items())
    }


@contextmanager
def scaled(network: nn.Module, base: Mapping[str, Tensor], strength: float) -> Iterator[None]:
    """Inside the block the network's weights are base + strength * (its own - base)."""
    own = dict(network.named_parameters())
    kept = {name: weight.clone() for name, weight in own.items()}
    for name, weight in own.items():
        weight.copy_(torch.lerp(base[name], weight, strength))
    try:
        yield
    finally:
        for name, weight in own.items():
            weight.copy_(kept[name])


def _states(
    family: Family, run: FinishedRun, times: Tensor, start: Tensor | None = None, first_step: int = 0
) -> Tensor:
    """States [P, steps + 1, L, D] of the ODE, from noise or from the state at a step."""
    parts = []
    for first in range(0, len(run.prompts), BATCH):
        prompts = run.prompts.rows(range(first, min(first + BATCH, len(run.prompts))))
        if start is None:
            seeds = [image_seed(run.params.generate.seed, name, 0) for name in prompts.ids]
            streams = [torch.Generator().manual_seed(seed) for seed in seeds]
            begin = sample_noise((len(prompts), *family.latent_shape), streams).to(family.device)
        else:
            begin = start[first : first + BATCH]
        velocity = velocity_function(family, prompts.conditioning.to(family.device))
        parts.append(rollout_ode(lambda step, v=velocity: v, begin, times, first_step=first_step))  # type: ignore[misc]
    return torch.cat(parts)


if __name__ == "__main__":
    sys.exit(main())
