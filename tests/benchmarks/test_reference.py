"""The reference trainer and ours are one method: same images and gradients for the same rewards, but for rounding."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.ablations import ITERATION, SEED, OneIteration
from benchmarks.reference import ReferenceTrainer
from benchmarks.workloads import TINY, Workload
from chunk_grpo.scorers.base import ScoreBatch
from chunk_grpo.training.run import TrainingData

CLIP_RANGE = 1e-4
"""Clip range that clips some chunks of these draws and not others; no ratio lies within rounding of it."""
WORKLOAD = Workload("small", TINY, 32, 2, 3, 4, 1)
REWARDS = np.array([0.1, 0.5, 0.2, 0.9, 0.3, 0.4])


class GivenRewards:
    """Gives rewards in the order of the images, and keeps these."""

    def __init__(self) -> None:
        self.weights = {"given": 1.0}
        self.images: list[NDArray[np.uint8]] = []

    def scores(self, batch: ScoreBatch) -> dict[str, NDArray[np.float64]]:
        first = len(self.images)
        self.images += list(batch.images)
        return {"given": REWARDS[first : len(self.images)]}


@dataclass(frozen=True)
class Side:
    """Images of one trainer's iteration, and the gradient of each of its updates as one vector."""

    images: NDArray[np.int64]
    gradients: list[Tensor]
    clipped: float


def iteration(trainer: str, data: TrainingData, same_noise: bool, folder: Path) -> Side:
    """One iteration, in which every update moves the weights by the same seeded step.

    AdamW's first steps have the gradient's sign alone, so rounding would move weights of a gradient near 0.
    """
    gradients: list[Tensor] = []

    def step(optimizer: torch.optim.Optimizer, closure: Any = None) -> None:
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        found = [torch.zeros_like(w) if w.grad is None else w.grad.clone() for w in weights]
        gradients.append(torch.cat([each.flatten().double() for each in found]))
        stream = torch.Generator().manual_seed(8)
        with torch.no_grad():
            for weight in weights:
                weight += 5e-3 * torch.randn(weight.shape, generator=stream)

    family, method, reward = WORKLOAD.family(), WORKLOAD.method(), GivenRewards()
    method = replace(method, variant=method.variant.model_copy(update={"clip_range": CLIP_RANGE}))
    changed = {"same_noise_in_group": same_noise, "reward_in_background": False, "max_grad_norm": 1e9}
    settings = WORKLOAD.params().train.model_copy(update=changed)
    given: Any = replace(data, reward=reward)
    clipped = 0.0
    with patch.object(torch.optim.AdamW, "step", step):
        if trainer == "reference":
            ReferenceTrainer(family, data.prompts, given.reward, method, settings, SEED).iterate(ITERATION)
        else:
            ours = OneIteration(family, given, method, settings, folder)
            ours.iterate(ITERATION)
            clipped = next(value for _, name, value in ours._rows if name == "clip_fraction")
    return Side(np.stack(reward.images).astype(np.int64), gradients, clipped)


@pytest.fixture(scope="module")
def data() -> TrainingData:
    return WORKLOAD.data()


@pytest.mark.parametrize("same_noise", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_both_trainers_draw_and_learn_the_same(data: TrainingData, same_noise: bool, tmp_path: Path) -> None:
    expected = iteration("reference", data, same_noise, tmp_path)
    found = iteration("ours", data, same_noise, tmp_path)
    assert len(expected.images) == len(REWARDS)
    assert (
        np.abs(found.images - expected.images).max() <= 1
    )  # of 256 values; a pixel may be rounded otherwise
    assert 0 < found.clipped < 1  # else clipping is not compared
    assert len(found.gradients) == len(expected.gradients) == 2
    for ours, theirs in zip(found.gradients, expected.gradients, strict=True):
        assert float(theirs.norm()) > 0
        assert float((ours - theirs).norm() / theirs.norm()) < 1e-4
