"""Relative L1 profile of a model, Eq. (15)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from chunk_grpo.config.models import SamplingParams
from chunk_grpo.core.dynamics import relative_l1
from chunk_grpo.core.rollout import rollout_ode, rollout_sde, sample_noise
from chunk_grpo.core.sde import Sampler, step_noise
from chunk_grpo.errors import DataError
from chunk_grpo.families.base import Family, velocity_function
from chunk_grpo.families.prompts import PromptSet
from chunk_grpo.library.times import times_of
from chunk_grpo.parallel import Workers
from chunk_grpo.progress import Meter
from chunk_grpo.seeding import generator


@dataclass(frozen=True)
class Curves:
    """Relative L1 distances of B trajectories."""

    prompt_ids: Sequence[str]
    """Prompt of each trajectory."""
    seeds: Sequence[int]
    """Noise seed of each trajectory."""
    distances: Mapping[str, Tensor]
    """Distances [B, S] under the SDE ("sde") and, if wanted, the ODE ("ode"), on the CPU."""


def profiled(
    family: Family,
    prompts: PromptSet,
    seeds: range,
    sampling: SamplingParams,
    batch_size: int,
    workers: Workers,
    *,
    with_ode: bool,
) -> Iterator[Curves]:
    """Measure the distances of each prompt with each seed, batch by batch; yield them in the main process.

    The prompt's id and the seed determine the noise. A latent that is not finite is a DataError, which names the prompt
    and the step.
    """
    times = times_of(sampling.num_steps, sampling.shift, lambda: family)
    noise = step_noise(sampling.sde, times, sampling.eta)
    jobs = [(row, seed) for row in range(len(prompts)) for seed in seeds]
    batches = [jobs[first : first + batch_size] for first in range(0, len(jobs), batch_size)]

    def measure(batch: Sequence[tuple[int, int]]) -> Curves:
        rows, own = prompts.rows([row for row, _ in batch]), [seed for _, seed in batch]
        return Curves(rows.ids, own, _distances(family, rows, own, times, noise, with_ode, meter.advance))

    own_jobs = sum(map(len, batches[workers.share[0] :: workers.share[1]]))
    with Meter("profiling", own_jobs, parts=sampling.num_steps * (1 + with_ode)) as meter:
        yield from workers.in_order(batches, measure)


def _distances(
    family: Family,
    prompts: PromptSet,
    seeds: Sequence[int],
    times: Tensor,
    noise: tuple[Tensor, Sampler],
    with_ode: bool,
    moved: Callable[[int], None],
) -> dict[str, Tensor]:
    """Distances by kind of sampler; `moved` is called after each step with the number of images that took it."""
    names = list(zip(prompts.ids, seeds, strict=True))
    start = sample_noise((len(names), *family.latent_shape), [generator("profile", *n) for n in names])
    start = start.to(family.device)
    velocity = velocity_function(family, prompts.conditioning.to(family.device))
    noises = [generator("profile-steps", *name) for name in names]
    strengths, sampler = noise

    def on_step(step: int) -> None:
        moved(len(names))

    runs = {"sde": rollout_sde(velocity, start, times, strengths, noises, on_step, sampler=sampler).states}
    if with_ode:
        runs["ode"] = rollout_ode(lambda step: velocity, start, times, on_step)
    for kind, states in runs.items():
        _require_finite(kind, states, prompts)
    return {kind: relative_l1(states).cpu() for kind, states in runs.items()}


def _require_finite(sampler: str, states: Tensor, prompts: PromptSet) -> None:
    broken = states.isfinite().flatten(start_dim=2).all(dim=2).logical_not().cpu().nonzero()  # of [B, S + 1]
    if len(broken):
        row, after = broken[0].tolist()
        raise DataError(
            f"profile: under the {sampler.upper()} the latents of prompt {prompts.texts[row]!r} are not finite "
            f"after step {after - 1} (from 0). Check model.checkpoint, or set another model.dtype, a smaller "
            "sampling.eta or another sampling.shift."
        )
