"""Distance of the trained policy from the base model: a KL divergence over held-out trajectories."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from chunk_grpo.core.log_prob import gaussian_kl
from chunk_grpo.core.rollout import rollout_sde, sample_noise
from chunk_grpo.families.base import Family, VelocityModel, velocity_function
from chunk_grpo.families.prompts import PromptSet
from chunk_grpo.seeding import generator
from chunk_grpo.training.ema import exchange
from chunk_grpo.training.method import StepGrid
from chunk_grpo.training.processes import Processes
from chunk_grpo.training.stopping import Check, Stoppable


class BaseModel:
    """The base model beside a policy in training.

    It is the reference policy or the policy without its adapter. If neither exists, the base's weights wait in the
    CPU's memory, and take the policy's place while they are in use.

    Attributes:
        family: The policy.
        reference: The reference policy; None: training needs none.
    """

    def __init__(self, family: Family, *, has_reference: bool, adapts: bool) -> None:
        """Keep the base, whose weights the family has now.

        Args:
            family: Policy, prepared for training and not trained yet.
            has_reference: Whether training needs a reference policy.
            adapts: Whether an adapter is trained.
        """
        self.family = family
        self.reference: VelocityModel | None = family.reference() if has_reference else None
        self._other = family.reference() if adapts and not has_reference else self.reference
        self._weights = [] if self._other is not None else [own.detach().to("cpu", copy=True) for own in self._parts()]

    @contextmanager
    def in_use(self) -> Iterator[VelocityModel]:
        """Context with the base model; the policy must not be used inside. Afterwards it has its own bits again."""
        self._exchange()
        try:
            yield self.family if self._other is None else self._other
        finally:
            self._exchange()

    def _exchange(self) -> None:
        """Exchange the weights that wait with the policy's."""
        exchange(self._parts() if self._weights else (), self._weights)

    def _parts(self) -> Iterator[Tensor]:
        """This process's part of each trained weight, in place."""
        for weight in self.family.trainable_parameters():
            yield weight.to_local() if isinstance(weight, DTensor) else weight.data


def distance_from_base(
    base: BaseModel, grid: StepGrid, prompts: PromptSet, batch_size: int, seed: int, processes: Processes, check: Check
) -> float | None:
    """KL divergence of the policy's trajectories from the base model's; None if no step has noise.

    The policy samples one trajectory for each prompt, with noise in all steps of the grid. At each of its states both
    models take the next step: the divergence of these two Gaussians is exact, and their sum over the steps is an
    unbiased estimate of the trajectories' divergence, divided by the number of latent dimensions, as all of ours.

    Args:
        base: The base model, and the policy.
        grid: Sampling grid of the rollouts.
        prompts: Held-out prompts.
        batch_size: Largest number of trajectories sampled together.
        seed: Seed of the noise, the same for all policies.
        processes: Processes that share the prompts.
        check: Called before each evaluation of a model; raises to abort.
    """
    if not bool((grid.noise != 0).any()):
        return None
    family = base.family
    share, count = processes.padded_share(len(prompts))
    parts = [prompts.rows(share[first : first + batch_size]) for first in range(0, len(share), batch_size)]
    made = [_sampled(Stoppable(family, check), part, family, grid, seed) for part in parts]
    with base.in_use() as model:
        found = [
            _divergences(Stoppable(model, check), part, each, family.device, grid)
            for part, each in zip(parts, made, strict=True)
        ]
    everybody: list[float] = processes.gather(torch.cat(found)[:count].tolist())
    return sum(everybody) / len(everybody)


def _sampled(
    policy: VelocityModel, part: PromptSet, family: Family, grid: StepGrid, seed: int
) -> tuple[Tensor, Tensor]:
    """A trajectory for each prompt: its states and the means of its steps. They wait on the CPU."""
    start = sample_noise(
        (len(part), *family.latent_shape), [generator("distance", seed, "start", name) for name in part.ids]
    )
    made = rollout_sde(
        velocity_function(policy, part.conditioning.to(family.device)),
        start.to(family.device),
        grid.times,
        grid.noise,
        [generator("distance", seed, "steps", name) for name in part.ids],
        sampler=grid.sampler,
        keep_means=True,
    )
    assert made.means is not None
    return made.states.cpu(), made.means.cpu()


@torch.no_grad()
def _divergences(
    base: VelocityModel, part: PromptSet, made: tuple[Tensor, Tensor], device: torch.device, grid: StepGrid
) -> Tensor:
    """Sum over the noisy steps of the divergence from the base's step at the same state, float64 [B] on the CPU."""
    states, means = made
    velocity = velocity_function(base, part.conditioning.to(device))
    total = torch.zeros(len(part), dtype=torch.float64)
    for step in grid.noise.nonzero().flatten().tolist():
        x = states[:, step].to(device)
        t, t_next = float(grid.times[step]), float(grid.times[step + 1])
        now = torch.full((len(part),), t, dtype=x.dtype, device=x.device)
        taken = grid.sampler.transition(x, velocity(x, now), t, t_next, float(grid.noise[step]))
        total += gaussian_kl(means[:, step].to(device), taken.mean, taken.std).double().cpu()
    return total
