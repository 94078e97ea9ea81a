"""Relative L1 profile of a model, Eq. (15)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from chunk_grpo.core.dynamics import relative_l1
from chunk_grpo.core.rollout import rollout_ode, rollout_sde, sample_noise
from chunk_grpo.core.sde import Sampler
from chunk_grpo.errors import DataError
from chunk_grpo.families.base import Family, velocity_function
from chunk_grpo.families.prompts import PromptSet
from chunk_grpo.seeding import generator


def curves(
    family: Family,
    prompts: PromptSet,
    seeds: Sequence[int],
    times: Tensor,
    noise: tuple[Tensor, Sampler],
    *,
    with_ode: bool,
) -> dict[str, Tensor]:
    """Relative L1 distances of B trajectories, [B, S], under the SDE ("sde") and, if wanted, the ODE ("ode").

    Args:
        family: Base model with the part "transformer".
        prompts: Prompt of each trajectory, B rows.
        seeds: Noise seed of each trajectory. With the prompt's id it determines the noise.
        times: Noise levels [S + 1].
        noise: Noise strength of each noisy step [S - 1], and the sampler of these steps.
        with_ode: Whether the ODE is run too.

    Raises:
        DataError: A latent is not finite; the message names the prompt and the step.
    """
    names = list(zip(prompts.ids, seeds, strict=True))
    start = sample_noise((len(names), *family.latent_shape), [generator("profile", *n) for n in names])
    start = start.to(family.device)
    velocity = velocity_function(family, prompts.conditioning.to(family.device))
    noises = [generator("profile-steps", *name) for name in names]
    strengths, sampler = noise
    runs = {"sde": rollout_sde(velocity, start, times, strengths, noises, sampler=sampler).states}
    if with_ode:
        runs["ode"] = rollout_ode(lambda step: velocity, start, times)
    for kind, states in runs.items():
        _require_finite(kind, states, prompts)
    return {kind: relative_l1(states) for kind, states in runs.items()}


def _require_finite(sampler: str, states: Tensor, prompts: PromptSet) -> None:
    broken = states.isfinite().flatten(start_dim=2).all(dim=2).logical_not().cpu().nonzero()  # of [B, S + 1]
    if len(broken):
        row, after = broken[0].tolist()
        raise DataError(
            f"profile: under the {sampler.upper()} the latents of prompt {prompts.texts[row]!r} are not finite "
            f"after step {after - 1} (from 0). Check model.checkpoint, or set another model.dtype, a smaller "
            "sampling.eta or another sampling.shift."
        )
