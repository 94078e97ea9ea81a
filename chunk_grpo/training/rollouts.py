"""One iteration's experience: a group of trajectories for each prompt, their pictures and their rewards."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from chunk_grpo.core.rollout import rollout_ode, rollout_sde, sample_noise
from chunk_grpo.core.types import Trajectory
from chunk_grpo.families.base import Family, velocity_function
from chunk_grpo.families.prompts import PromptSet, require_finite
from chunk_grpo.scorers.base import ScoreBatch, Scores
from chunk_grpo.scorers.registry import Reward
from chunk_grpo.seeding import generator
from chunk_grpo.training.update import StepGrid

_DIVERGED = (
    "The policy has diverged: lower train.learning_rate or train.max_grad_norm and start from the last good "
    "checkpoint."
)


@dataclass(frozen=True)
class Experience:
    """Trajectories of P prompts x G images (row = prompt * G + image) and what they earned.

    Attributes:
        prompts: One row for each trajectory.
        states: [B, S + 1, L, D].
        log_probs: [B, S - 1] under the policy that sampled.
        rewards: [P, G].
        parts: Each scorer's values [B].
        seconds_rollout: Time in the sampler.
        seconds_reward: Time in decoding and scoring.
    """

    prompts: PromptSet
    states: Tensor
    log_probs: Tensor
    rewards: Tensor
    parts: dict[str, np.ndarray]
    seconds_rollout: float
    seconds_reward: float


@dataclass(frozen=True)
class RolloutSettings:
    """How experience is gathered.

    Attributes:
        group_size: Images for each prompt.
        batch_size: Trajectories in one forward pass.
        same_noise_in_group: Whether a group's images start from one noise.
        seed: Training seed; every trajectory's noise is a function of it, the iteration and the row.
    """

    group_size: int
    batch_size: int
    same_noise_in_group: bool
    seed: int


def gather(
    family: Family,
    grid: StepGrid,
    prompts: PromptSet,
    reward: Reward,
    settings: RolloutSettings,
    iteration: int,
) -> Experience:
    """Sample a group for each of the P `prompts` with the current policy, decode and score.

    Raises:
        DataError: A latent or a reward is not finite; the message names the prompt.
    """
    start = time.perf_counter()
    rows = prompts.repeated(settings.group_size)
    batches = [
        _sample(
            family, grid, rows, range(first, min(first + settings.batch_size, len(rows))), settings, iteration
        )
        for first in range(0, len(rows), settings.batch_size)
    ]
    states = torch.cat([batch.states for batch in batches])
    require_finite(states, rows, f"iteration {iteration}", _DIVERGED)
    sampled = time.perf_counter()
    scores = score_latents(family, states[:, -1], rows, reward, settings.batch_size)
    return Experience(
        prompts=rows,
        states=states,
        log_probs=torch.cat([batch.log_probs for batch in batches]),
        rewards=torch.from_numpy(scores.values).view(len(prompts), settings.group_size),
        parts=dict(scores.details),
        seconds_rollout=sampled - start,
        seconds_reward=time.perf_counter() - sampled,
    )


def _sample(
    family: Family, grid: StepGrid, rows: PromptSet, span: range, settings: RolloutSettings, iteration: int
) -> Trajectory:
    """Trajectories of the rows in `span`; each has its own streams, so the batch size changes nothing."""
    stream = ("rollout", settings.seed, iteration)
    first = [row - row % settings.group_size if settings.same_noise_in_group else row for row in span]
    x1 = sample_noise((len(span), *family.latent_shape), [generator(*stream, "start", row) for row in first])
    velocity = velocity_function(family, rows.conditioning.rows(list(span)))
    noises = [generator(*stream, "steps", row) for row in span]
    device = rows.conditioning.prompt_embeds.device
    return rollout_sde(velocity, x1.to(device), grid.times, grid.diffusion_coefs, noises)


def heldout_scores(
    family: Family,
    times: Tensor,
    prompts: PromptSet,
    images_per_prompt: int,
    reward: Reward,
    seed: int,
    batch_size: int,
) -> Scores:
    """Rewards of the current policy's ODE samples on fixed prompts and fixed noise: comparable between iterations.

    Raises:
        DataError: A latent or a reward is not finite.
    """
    rows = prompts.repeated(images_per_prompt)
    names = [f"{rows.ids[i]}/{i % images_per_prompt}" for i in range(len(rows))]
    finals = []
    for first in range(0, len(rows), batch_size):
        span = range(first, min(first + batch_size, len(rows)))
        noise = sample_noise(
            (len(span), *family.latent_shape), [generator("heldout", seed, names[i]) for i in span]
        )
        conditioning = rows.conditioning.rows(list(span))
        velocity = velocity_function(family, conditioning)
        start = noise.to(conditioning.prompt_embeds.device)
        finals.append(rollout_ode(lambda _, v=velocity: v, start, times)[:, -1])  # type: ignore[misc]  # v bound early
    latents = torch.cat(finals)
    require_finite(latents, rows, "held-out prompts", _DIVERGED)
    return score_latents(family, latents, rows, reward, batch_size)


def score_latents(
    family: Family, latents: Tensor, rows: PromptSet, reward: Reward, batch_size: int
) -> Scores:
    """Decode final latents and score the pictures."""
    images = torch.cat([family.decode(part) for part in latents.split(batch_size)]).cpu().numpy()
    return reward.score(ScoreBatch(images, rows.texts, rows.metadata))
