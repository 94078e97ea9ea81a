"""The reference trainer and ours are one method: same trajectories, rewards and gradients, but for rounding."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from benchmarks.reference import ReferenceTrainer, Sample
from benchmarks.workloads import TINY, Workload
from chunk_grpo.families.base import TuningOptions
from chunk_grpo.families.models.flux import FluxFamily
from chunk_grpo.training.advantages import advantages_of, rewards_of
from chunk_grpo.training.learner import Learner, TrainingBatch
from chunk_grpo.training.method import Method
from chunk_grpo.training.processes import Processes
from chunk_grpo.training.rollouts import Experience, RolloutSettings, collect_experience
from chunk_grpo.training.run import TrainingData
from chunk_grpo.training.schedule import prompts_of_iteration
from chunk_grpo.training.starts import Iteration
from chunk_grpo.training.update import Policies, UpdateStats
from tests.shapes_scorers import shapes_reward

SEED, ITERATION = 3, 1
CLIP_RANGE = 1e-4
"""Clip range that clips some chunks of these draws and not others; no ratio lies within rounding of it."""
WORKLOAD = Workload("small", TINY, 32, 2, 3, 4, 1)
PIXELS = 32 * 32


def check() -> None:
    """Nobody wants to stop."""


@pytest.fixture(scope="module")
def data() -> TrainingData:
    """Two prompts and a reward without thresholds, which rounding could cross."""
    return replace(WORKLOAD.data(), reward=shapes_reward({"shapes-vivid": 1.0}))


def moved(family: FluxFamily) -> FluxFamily:
    """The family after a seeded random step of its weights, as an update would make one."""
    stream = torch.Generator().manual_seed(8)
    with torch.no_grad():
        for weight in family.trainable_parameters():
            weight += 5e-3 * torch.randn(weight.shape, generator=stream)
    return family


def method() -> Method:
    """The workload's method with the clip range of these tests."""
    made = WORKLOAD.method()
    return replace(made, variant=made.variant.model_copy(update={"clip_range": CLIP_RANGE}))


def gradients(family: FluxFamily) -> list[Tensor]:
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in family.trainable_parameters()]


def relative_difference(a: list[Tensor], b: list[Tensor]) -> float:
    """Norm of the difference over that of `b`."""
    flat = torch.cat([value.flatten().double() for value in a]), torch.cat([v.flatten().double() for v in b])
    return float((flat[0] - flat[1]).norm() / flat[1].norm())


@dataclass(frozen=True)
class Side:
    """Result of one trainer's iteration."""

    rewards: Tensor
    advantages: Tensor
    states: Tensor
    log_probs: Tensor
    first: list[Tensor]
    second: list[Tensor]
    stats: UpdateStats | None = None


def ours(data: TrainingData, same_noise: bool, rewards: Tensor) -> Side:
    """Its own images and rewards, and what it learns from the given rewards [B]."""
    family, params, processes = WORKLOAD.family(), WORKLOAD.params(), Processes()
    chosen = method()
    family.prepare_training(TuningOptions(None, 1.0, (), False, None), 0)
    learner = Learner(
        Policies(family.velocity), list(family.trainable_parameters()), chosen, params.train, processes, SEED
    )
    picked = prompts_of_iteration(ITERATION - 1, 2, 2, SEED)
    experience: Experience = collect_experience(
        family,
        chosen,
        Iteration(ITERATION, data.prompts.rows(picked), range(2 * 3)),
        data.reward,
        RolloutSettings(3, 4, same_noise, background=False, seed=SEED, decode_batch_size=4),
    )
    given = replace(experience, scores={"shapes-vivid": rewards.numpy()})
    batch = TrainingBatch(ITERATION, given, advantages_of(given, data.reward.weights, chosen))
    updates = learner.prepare(batch, check, fresh=True)
    updates[0].accumulate_gradient(processes, on_policy=True, check=check)
    first = gradients(family)
    learner.optimizer.zero_grad()
    moved(family)
    stats = updates[1].accumulate_gradient(processes, on_policy=False, check=check)
    second = gradients(family)
    trajectories = experience.trajectories
    return Side(
        rewards_of(experience, data.reward.weights).flatten(),
        batch.advantages,
        trajectories.states,
        trajectories.log_probs,
        first,
        second,
        stats,
    )


def plain(data: TrainingData, same_noise: bool) -> Side:
    family = WORKLOAD.family()
    settings = WORKLOAD.params().train.model_copy(update={"same_noise_in_group": same_noise})
    chosen = method()
    trainer = ReferenceTrainer(family, data.prompts, data.reward, chosen, settings, SEED)
    samples: list[Sample] = trainer.roll_out(ITERATION)
    advantages = trainer.advantages(samples)
    trainer.accumulate_gradient(ITERATION, 0, samples, advantages)
    first = gradients(family)
    moved(family)
    trainer.accumulate_gradient(ITERATION, 1, samples, advantages)
    return Side(
        torch.tensor([sample.reward for sample in samples], dtype=torch.float64),
        advantages,
        torch.stack([sample.states for sample in samples]),
        torch.stack([sample.log_probs for sample in samples]),
        first,
        gradients(family),
    )


@pytest.mark.parametrize("same_noise", [False, True])
def test_both_trainers_draw_earn_and_learn_the_same(data: TrainingData, same_noise: bool) -> None:
    expected = plain(data, same_noise)
    found = ours(data, same_noise, expected.rewards)
    assert torch.allclose(found.states, expected.states, rtol=0, atol=1e-4)
    assert torch.allclose(found.log_probs, expected.log_probs, rtol=0, atol=1e-5)
    # Where the states round differently, a value of a pixel may become its neighbour among 256: the vividness of that
    # pixel, one of PIXELS, moves by 1 at most.
    assert torch.allclose(found.rewards, expected.rewards, rtol=0, atol=1 / PIXELS)
    assert torch.allclose(found.advantages.float(), expected.advantages, rtol=0, atol=1e-6)
    stats = found.stats
    assert stats is not None
    assert 0 < stats.clipped.double().mean() < 1  # else clipping is not compared
    assert ((stats.ratios - 1).abs() - CLIP_RANGE).abs().min() > 1e-5  # nor decided by rounding
    assert relative_difference(found.first, expected.first) < 1e-4
    assert relative_difference(found.second, expected.second) < 1e-4
