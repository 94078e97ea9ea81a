"""A plain trainer for Chunk-GRPO, structured like DanceGRPO's code, to compare ours with.

It uses the same method, model, prompts, reward and random streams as ours, so its updates equal ours up to rounding.
Like the released code of DanceGRPO and of this paper, it draws trajectories one at a time; decodes and scores each
image immediately; updates sample by sample and chunk by chunk, holding the graph of all steps of a chunk until its
backward pass; and takes old log-probabilities from the rollout. Its formulas use plain floats instead of the library's
functions, so that it has none of their checks.

It supports only one plan for all trajectories, one clip range for all chunks, and no divergence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from chunk_grpo.config import TrainParams
from chunk_grpo.core.objective import ClipRange
from chunk_grpo.families.base import Conditioning, Family, TuningOptions
from chunk_grpo.families.prompts import PromptSet
from chunk_grpo.image_files import as_pictures
from chunk_grpo.scorers.base import ScoreBatch
from chunk_grpo.scorers.reward import Reward, weighted_sum
from chunk_grpo.seeding import generator
from chunk_grpo.training.chunk_selection import ChunkSelector, DrawContext
from chunk_grpo.training.method import Method, StepGrid
from chunk_grpo.training.rollouts import SampledTrajectories
from chunk_grpo.training.schedule import prompts_of_iteration


@dataclass(frozen=True)
class Sample:
    """Trajectory and reward of one image."""

    prompt: PromptSet
    """Prompt, one row."""
    states: Tensor
    """States, [S + 1, L, D]."""
    log_probs: Tensor
    """Log-probabilities under the sampling policy, [S - 1]."""
    reward: float
    """Weighted sum of the scorers."""


class ReferenceTrainer:
    """Trainer of all weights of the family's transformer, in place."""

    def __init__(
        self, family: Family, prompts: PromptSet, reward: Reward, method: Method, settings: TrainParams, seed: int
    ) -> None:
        """Prepare training; arguments as in `chunk_grpo.training.trainer.Trainer`."""
        self._family, self._prompts, self._reward = family, prompts, reward
        self._method, self._settings, self._seed = method, settings, seed
        family.prepare_training(TuningOptions(None, 1.0, (), settings.gradient_checkpointing, None), seed)
        family.transformer.eval()
        self._parameters = list(family.trainable_parameters())
        self._optimizer = torch.optim.AdamW(
            self._parameters, lr=settings.learning_rate, weight_decay=settings.weight_decay
        )

    def iterate(self, iteration: int) -> None:
        """Run one iteration."""
        samples = self.roll_out(iteration)
        advantages = self.advantages(samples)
        for number in range(self._settings.updates_per_iteration):
            self.accumulate_gradient(iteration, number, samples, advantages)
            self.step()

    def roll_out(self, iteration: int) -> list[Sample]:
        """Draw the group of each prompt, image by image."""
        settings = self._settings
        count = settings.prompts_per_iteration
        picked = prompts_of_iteration(iteration - 1, count, len(self._prompts), self._seed)
        samples = []
        for place, prompt in enumerate(picked):
            for image in range(settings.group_size):
                row = place * settings.group_size + image
                start = row - image if settings.same_noise_in_group else row
                samples.append(self._sample(iteration, self._prompts.rows([prompt]), row, start))
        return samples

    def advantages(self, samples: Sequence[Sample]) -> Tensor:
        """Rewards standardised within each group, [B]."""
        rewards = torch.tensor([sample.reward for sample in samples], dtype=torch.float64)
        groups = rewards.view(-1, self._settings.group_size)
        centred = groups - groups.mean(dim=1, keepdim=True)
        bound = self._settings.advantage_clip
        return (centred / (groups.std(dim=1, keepdim=True) + 1e-8)).clamp(-bound, bound).flatten().float()

    def accumulate_gradient(self, iteration: int, number: int, samples: Sequence[Sample], advantages: Tensor) -> None:
        """Compute the gradient of update `number`, sample by sample and chunk by chunk."""
        size = len(samples) // self._settings.updates_per_iteration
        rows = range(number * size, (number + 1) * size)
        chosen = [samples[row] for row in rows]
        selected = self._select(iteration, number, chosen)
        plan = self._method.plan
        self._optimizer.zero_grad()
        for sample, chunks, advantage in zip(chosen, selected, advantages[list(rows)], strict=True):
            for chunk in chunks.nonzero().flatten().tolist():
                first = plan.first_steps[chunk]
                surrogate = chunk_surrogate(
                    self._family.velocity,
                    self._method.grid,
                    self._method.bounds.clip_range,
                    Trajectories(
                        sample.states[None],
                        sample.log_probs[None],
                        sample.prompt.conditioning.to(self._family.device),
                        advantage[None],
                    ),
                    range(first, first + plan.sizes[chunk]),
                )
                (-surrogate.sum() / (size * int(chunks.sum()))).backward()

    def step(self) -> None:
        """Clip the gradient and step the optimiser."""
        torch.nn.utils.clip_grad_norm_(self._parameters, self._settings.max_grad_norm)
        self._optimizer.step()

    @torch.no_grad()
    def _sample(self, iteration: int, prompt: PromptSet, row: int, start: int) -> Sample:
        """Draw one trajectory and score its image."""
        grid, stream = self._method.grid, ("rollout", self._seed, iteration)
        times = grid.times.tolist()
        noise = generator(*stream, "steps", row)
        shape = self._family.latent_shape
        device = self._family.device
        conditioning = prompt.conditioning.to(device)
        x = torch.randn(*shape, generator=generator(*stream, "start", start))[None].to(device)
        states, log_probs = [x], []
        for step in range(grid.num_sde_steps):
            velocity = self._family.velocity(x, torch.full((1,), times[step], device=device), conditioning)
            mean, std = _transition(grid, step, x, velocity)
            x = mean + std * torch.randn(*shape, generator=noise)[None].to(device)
            log_probs.append(_log_prob(x, mean, std))
            states.append(x)
        velocity = self._family.velocity(x, torch.full((1,), times[-2], device=device), conditioning)
        states.append(x - times[-2] * velocity)
        image = as_pictures(self._family.decode(states[-1]).cpu().numpy())
        scores = self._reward.scores(ScoreBatch(image, prompt.texts, prompt.metadata, prompt.groups()))
        return Sample(
            prompt, torch.cat(states), torch.cat(log_probs), float(weighted_sum(scores, self._reward.weights)[0])
        )

    def _select(self, iteration: int, number: int, samples: Sequence[Sample]) -> Tensor:
        """Selected chunks, bool [n, K]; our trainer's draw, so that both trainers train the same chunks."""
        states = torch.stack([sample.states for sample in samples])
        log_probs = torch.stack([sample.log_probs for sample in samples])
        zeros = torch.zeros(len(samples), dtype=torch.int64)
        noisy = torch.ones(log_probs.shape, dtype=torch.bool)
        context = DrawContext(
            seed=self._seed,
            iteration=iteration,
            iterations=self._settings.iterations,
            update=number,
            rows=range(len(samples)),
            total=len(samples),
        )
        trajectories = SampledTrajectories(states, zeros, noisy, log_probs, None, states[:, -1])
        return ChunkSelector(self._method).select(trajectories, context).selected


@dataclass(frozen=True)
class Trajectories:
    """Training data of n trajectories."""

    states: Tensor
    """States, [n, S + 1, L, D]."""
    old_log_probs: Tensor
    """Log-probabilities under the sampling policy, [n, S - 1]."""
    conditioning: Conditioning
    """Conditioning of n prompts."""
    advantages: Tensor
    """Advantages, [n]."""


def chunk_surrogate(
    velocity: Callable[[Tensor, Tensor, Conditioning], Tensor],
    grid: StepGrid,
    clip_range: ClipRange,
    rows: Trajectories,
    steps: range,
) -> Tensor:
    """Clipped surrogate of one chunk, [n], with the graph of all its steps.

    Paper: the inner term of Eq. (13) with the ratio of Eq. (14).
    """
    if isinstance(clip_range, Tensor):
        raise ValueError("the reference supports only one clip range for all chunks")
    log_ratio = torch.zeros(len(rows.states), device=rows.states.device)
    for step in steps:
        x = rows.states[:, step]
        t = torch.full((len(x),), float(grid.times[step]), device=x.device)
        mean, std = _transition(grid, step, x, velocity(x, t, rows.conditioning))
        log_ratio = log_ratio + _log_prob(rows.states[:, step + 1], mean, std) - rows.old_log_probs[:, step]
    ratio = (log_ratio / len(steps)).exp()
    clipped = ratio.clamp(1 - clip_range, 1 + clip_range)
    return torch.minimum(ratio * rows.advantages, clipped * rows.advantages)


def _transition(grid: StepGrid, step: int, x: Tensor, velocity: Tensor) -> tuple[Tensor, float]:
    """Mean and standard deviation of an SDE step. Paper: Eq. (7)."""
    t, t_next = float(grid.times[step]), float(grid.times[step + 1])
    coef, dt = float(grid.noise[step]), t_next - t
    drift = velocity + coef**2 / (2 * t) * (x + (1 - t) * velocity)
    return x + drift * dt, coef * math.sqrt(-dt)


def _log_prob(x: Tensor, mean: Tensor, std: float) -> Tensor:
    """Log-density, mean over latent dimensions, [n]. Paper: Eq. (6)."""
    log_density = -((x - mean) ** 2) / (2 * std**2) - math.log(std) - 0.5 * math.log(2 * math.pi)
    return log_density.mean(dim=(1, 2))
