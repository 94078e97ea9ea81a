"""Experience of one iteration: trajectories of the current policy and the scores of their images."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chunk_grpo.config import BranchingParams, TrainParams
from chunk_grpo.core.branching import Branch, rollout_branches
from chunk_grpo.core.choices import needs_old_means
from chunk_grpo.core.rollout import rollout_sde, sample_noise
from chunk_grpo.core.types import Velocity
from chunk_grpo.core.window import drawn_window_steps, window_steps
from chunk_grpo.families.base import Conditioning, Family, velocity_function
from chunk_grpo.families.prompts import PromptSet, require_finite
from chunk_grpo.scorers.reward import Reward
from chunk_grpo.seeding import generator
from chunk_grpo.training.method import Method
from chunk_grpo.training.schedule import prompts_of_rows
from chunk_grpo.training.scoring import Judge, Waits
from chunk_grpo.training.stopping import Check, Stoppable, never

DIVERGED = (
    "The policy has diverged: lower the learning rate (train.learning_rate, or the variant's own) or "
    "train.max_grad_norm."
)


@dataclass(frozen=True)
class SampledTrajectories:
    """B trajectories. Z consecutive steps of each are stored: Z = S, or 1 for a branch.

    Latents are on the family's device, the small tables `first_step`, `noisy` and `log_probs` on the CPU: what is
    computed from them, with its checks, then never waits for the device.
    """

    states: Tensor
    """States [B, Z + 1, L, D]."""
    first_step: Tensor
    """int64 [B], the step that begins at `states[:, 0]`."""
    noisy: Tensor
    """Bool [B, S - 1], whether a step carries noise. A window and branches train these steps."""
    log_probs: Tensor
    """Log-probabilities [B, S - 1] under the sampling policy; 0 where a step is not noisy."""
    means: Tensor | None
    """Means of the noisy steps [B, Z or Z - 1, L, D]; None if the ratio is not normalised."""
    finals: Tensor
    """Final latents of the images [B, L, D]."""
    predicted: Tensor | None = None
    """Final latents [B, K, L, D] that are predicted at the beginning of the chunks, until they are scored; None if the
    advantages do not need them."""

    def rows(self, where: slice) -> SampledTrajectories:
        """The trajectories at these rows."""
        parts: dict[str, Any] = {name: None if value is None else value[where] for name, value in vars(self).items()}
        return SampledTrajectories(**parts)

    def judged(self) -> tuple[Tensor, ...]:
        """Final latents [B, L, D] to score: first the K predicted ones, if there are any, then the images' own."""
        predicted = () if self.predicted is None else self.predicted.unbind(dim=1)
        return (*predicted, self.finals)

    def state(self) -> dict[str, Tensor | None]:
        """The fields by name, on the CPU, for a checkpoint."""
        return {name: None if value is None else value.cpu().contiguous() for name, value in vars(self).items()}

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor | None], device: torch.device) -> SampledTrajectories:
        """Restore the result of `state`, with latents on the device."""
        latents = {name: state[name] for name in ("states", "means", "finals", "predicted")}
        moved = {name: value if value is None else value.to(device) for name, value in latents.items()}
        restored: dict[str, Any] = {**state, **moved}
        return cls(**restored)


@dataclass(frozen=True)
class Experience:
    """Trajectories and scores of B images of one process, or the scores of all.

    All images of an iteration are Q groups of G, each standardised on its own: row = group * G + number within the
    group. The groups of a prompt are consecutive. A process has an equal part of each update's rows, and so parts of
    groups.
    """

    prompts: PromptSet
    """Prompt of each image, B rows."""
    trajectories: SampledTrajectories
    """Trajectories of the images."""
    group_size: int
    """Images per group, G."""
    scores: dict[str, NDArray[np.float64]]
    """Values [B] of each scorer."""
    seconds: dict[str, float]
    """Seconds by phase."""
    predicted: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    """Values [B, K] of each scorer for the images predicted at the beginning of the chunks; empty if the advantages do
    not need them, or have been computed."""


@dataclass(frozen=True)
class Iteration:
    """This process's share of an iteration.

    The starts of all processes are numbered in the order of the prompts; the number names the noise, so the shares do
    not affect the images.
    """

    number: int
    """Number of the iteration, from 1."""
    prompts: PromptSet
    """Prompts of all processes, P."""
    starts: Sequence[int]
    """Numbers of this process's starts."""


def collect_experience(
    family: Family,
    method: Method,
    iteration: Iteration,
    reward: Reward,
    settings: TrainParams,
    seed: int,
    check: Check = never,
    waits: Waits | None = None,
    sampled: list[SampledTrajectories] | None = None,
) -> Experience:
    """Sample this process's images with the current policy, decode and score them.

    Args:
        family: Policy.
        method: Settings of the variant.
        iteration: Prompts and this process's share of their images.
        reward: Scorers.
        settings: `train` section of params.yaml.
        seed: Training seed. With iteration and row it determines the noise of a trajectory.
        check: Called before each evaluation of the policy, equally often in all processes; raises to abort.
        waits: How the process waits for its scores; None: alone, until they are there.
        sampled: First batches of the iteration, which are not sampled again. Receives the others, and is emptied when
            all are scored.

    Raises:
        DataError: A latent or a reward is not finite; the message names the prompt.
        UnscoredError: A scorer was away for too long, in this process or another.
        GivenUpError: A stop was requested.
    """
    start = time.perf_counter()
    branching = method.variant.branching
    rows = iteration.prompts.rows(prompts_of_rows(iteration.starts, settings.group_size, branching))
    sampler = _Sampling(family, method, iteration, settings, seed, check)
    batches = [] if sampled is None else sampled
    done = len(batches)
    others = sampler.branches(branching, done) if branching else sampler.trajectories(done)
    with Judge(family, reward, settings, waits or Waits()) as judge:
        for trajectories in _added(others, batches):
            span = range(judge.count, judge.count + len(trajectories.finals))
            part = rows.rows(span)
            require_finite(trajectories.finals, part, "rollout", DIVERGED)
            judge.submit(trajectories.judged(), part)
        end_of_sampling = time.perf_counter()
        scores = judge.scores()  # [B, V]
    trajectories = _joined(batches)
    batches.clear()
    return Experience(
        prompts=rows,
        trajectories=trajectories,
        group_size=branching.children if branching else settings.group_size,
        scores={name: values[:, -1] for name, values in scores.items()},
        seconds={
            "rollout": end_of_sampling - start,
            "reward": judge.seconds,
            "waiting_for_reward": time.perf_counter() - end_of_sampling,
        },
        predicted={name: values[:, :-1] for name, values in scores.items() if values.shape[1] > 1},
    )


def _added(others: Iterable[SampledTrajectories], batches: list[SampledTrajectories]) -> Iterator[SampledTrajectories]:
    """The batches, and then the others, each of which is added to them."""
    yield from tuple(batches)
    for each in others:
        batches.append(each)
        yield each


class _Sampling:
    """Samples one iteration. Each row has its own random streams, so batch size and processes do not affect them."""

    def __init__(
        self, family: Family, method: Method, iteration: Iteration, settings: TrainParams, seed: int, check: Check
    ) -> None:
        self._policy, self._latent_shape = Stoppable(family, check), family.latent_shape
        self._device = family.device
        self._method, self._settings = method, settings
        self._prompts, self._names = iteration.prompts, iteration.starts
        self._number = iteration.number
        self._stream = ("rollout", seed, iteration.number)
        self._keep_means = needs_old_means(
            method.variant.ratio_norm, method.variant.trust_region, method.variant.likelihood
        )

    def trajectories(self, done: int) -> Iterator[SampledTrajectories]:
        """Sample whole trajectories, without the first `done` batches.

        All steps but the last are noisy, or only the window's steps.
        """
        grid, size = self._method.grid, self._settings.group_size
        noisy, per_batch = self._noisy_steps(), self._settings.rollout_batch_size
        for first in range(done * per_batch, len(self._names), per_batch):
            names = self._names[first : first + per_batch]
            made = rollout_sde(
                self._velocity([name // size for name in names]),
                self._starts([row - row % size if self._settings.same_noise_in_group else row for row in names]),
                grid.times,
                grid.noise,
                [generator(*self._stream, "steps", row) for row in names],
                sde_steps=noisy,
                sampler=grid.sampler,
                keep_means=self._keep_means,
                predict_at=self._method.predicted_steps,
                solver=self._method.variant.solver,
            )
            yield SampledTrajectories(
                states=made.states,
                first_step=torch.zeros(len(names), dtype=torch.int64),
                noisy=(made.transition_stds > 0).expand(len(names), -1),
                log_probs=made.log_probs.cpu(),
                means=made.means,
                finals=made.states[:, -1],
                predicted=made.predicted,
            )

    def branches(self, branching: BranchingParams, done: int) -> Iterator[SampledTrajectories]:
        """Sample ODE runs with children at the iteration's branch points, without the first `done` batches.

        Row = (prompt, run, point, child).
        """
        grid, children = self._method.grid, branching.children
        steps = torch.randperm(grid.num_sde_steps, generator=generator(*self._stream, "points"))
        points = sorted(steps[: branching.points].tolist())
        runs = self._settings.group_size // children
        per_batch = max(1, self._settings.rollout_batch_size // children)
        for first in range(done * per_batch, len(self._names), per_batch):
            names = self._names[first : first + per_batch]
            prompts = self._prompts.conditioning.rows([name // runs for name in names]).to(self._device)

            def velocity(x: Tensor, t: Tensor, rows: Tensor, prompts: Conditioning = prompts) -> Tensor:
                return self._policy.velocity(x, t, prompts.rows(rows))

            def stream(row: int, step: int, child: int, names: Sequence[int] = names) -> torch.Generator:
                return generator(*self._stream, "branch", names[row], step, child)

            made = rollout_branches(
                velocity, self._starts(names), grid.times, grid.noise, points, children, stream, grid.sampler
            )
            yield _branches_as_rows(made, grid.num_sde_steps, self._keep_means)

    def _noisy_steps(self) -> Sequence[int] | None:
        window = self._method.variant.window
        if window is None:
            return None
        if window.starts is not None:
            return drawn_window_steps(window.starts, window.num_steps, generator(*self._stream, "window"))
        return window_steps(
            self._number, self._method.grid.num_sde_steps, window.num_steps, window.stride, window.every
        )

    def _starts(self, names: Sequence[int]) -> Tensor:
        noise = sample_noise(
            (len(names), *self._latent_shape), [generator(*self._stream, "start", name) for name in names]
        )
        return noise.to(self._device)

    def _velocity(self, prompts: Sequence[int]) -> Velocity:
        """Velocity for one rollout of rows with these prompts. Rows with the same start share the first evaluation."""
        conditioning = self._prompts.conditioning.rows(prompts).to(self._device)
        everywhere = velocity_function(self._policy, conditioning)
        if not self._settings.same_noise_in_group:
            return everywhere
        distinct = sorted(set(prompts))
        where = torch.tensor([distinct.index(prompt) for prompt in prompts])
        leaders = torch.tensor([prompts.index(prompt) for prompt in distinct])
        alike = velocity_function(self._policy, conditioning.rows(leaders))
        calls = count()  # the value of t would have to be waited for

        def velocity(x: Tensor, t: Tensor) -> Tensor:
            if next(calls) == 0:
                return alike(x[leaders], t[leaders])[where]
            return everywhere(x, t)

        return velocity


def _branches_as_rows(branches: Sequence[Branch], num_sde_steps: int, keep_means: bool) -> SampledTrajectories:
    """Convert B runs with W children at each of A branch points to B * A * W rows of one step each."""
    rows, children = branches[0].log_probs.shape
    steps = torch.tensor([branch.step for branch in branches])
    first_step = steps.view(1, -1, 1).expand(rows, -1, children).flatten()  # [B * A * W]
    noisy = torch.nn.functional.one_hot(first_step, num_sde_steps).bool()  # [B * A * W, S - 1]

    def of_children(values: list[Tensor]) -> Tensor:
        return torch.stack(values, dim=1).flatten(0, 2)  # A times [B, W, ...] -> [B * A * W, ...]

    def of_runs(values: list[Tensor]) -> Tensor:
        # A times [B, ...] -> [B * A * W, ...]
        return torch.stack(values, dim=1).flatten(0, 1).repeat_interleave(children, dim=0)

    log_probs = of_children([branch.log_probs for branch in branches]).cpu()
    before = of_runs([branch.before for branch in branches])
    after = of_children([branch.after for branch in branches])
    means = of_runs([branch.mean for branch in branches]).unsqueeze(1) if keep_means else None
    return SampledTrajectories(
        states=torch.stack([before, after], dim=1),
        first_step=first_step,
        noisy=noisy,
        log_probs=log_probs.unsqueeze(1) * noisy.to(log_probs),
        means=means,
        finals=of_children([branch.finals for branch in branches]),
    )


def _joined(batches: Sequence[SampledTrajectories]) -> SampledTrajectories:
    """All batches as one, without the predicted images, which are scored."""
    means = [batch.means for batch in batches if batch.means is not None]
    return SampledTrajectories(
        states=torch.cat([batch.states for batch in batches]),
        first_step=torch.cat([batch.first_step for batch in batches]),
        noisy=torch.cat([batch.noisy for batch in batches]),
        log_probs=torch.cat([batch.log_probs for batch in batches]),
        means=torch.cat(means) if means else None,
        finals=torch.cat([batch.finals for batch in batches]),
    )
