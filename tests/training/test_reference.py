"""A plain trainer and ours are one method: same images and gradients for the same rewards, but for rounding."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from chunk_grpo.families.models.flux import FluxFamily
from chunk_grpo.scorers.base import ScoreBatch
from chunk_grpo.training.run import RunPaths, TrainingData
from chunk_grpo.training.trainer import Trainer
from tests.training.conftest import CHUNK_WS, method_of, small_params
from tests.training.reference import ReferenceTrainer

CLIP_RANGE = 1e-4
"""Clip range that clips some chunks of these draws and not others; no ratio lies within rounding of it."""
REWARDS = np.array([0.1, 0.5, 0.2, 0.4, 0.3, 0.9])
SEED, ITERATION = 0, 1


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


def iteration(trainer: str, family: FluxFamily, data: TrainingData, same_noise: bool, folder: Path) -> Side:
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

    changed = {"same_noise_in_group": same_noise, "reward_in_background": False, "max_grad_norm": 1e9}
    params = small_params({**CHUNK_WS, "clip_range": CLIP_RANGE}, kl_coef=0.0, **changed)
    method, reward = method_of(params), GivenRewards()
    given: Any = replace(data, reward=reward)
    clipped = 0.0
    with patch.object(torch.optim.AdamW, "step", step):
        if trainer == "reference":
            ReferenceTrainer(family, data.prompts, given.reward, method, params.train, SEED).iterate(ITERATION)
        else:
            ours = Trainer(family, given, method, params.train, SEED, RunPaths(folder, "test", folder, "it"))
            ours._should_stop = lambda: False
            ours._iterate(ITERATION)
            clipped = next(value for _, name, value in ours._rows if name == "clip_fraction")
    return Side(np.stack(reward.images).astype(np.int64), gradients, clipped)


@pytest.mark.parametrize("same_noise", [False, True])
def test_both_trainers_draw_and_learn_the_same(
    policy: Callable[[], FluxFamily], data: TrainingData, same_noise: bool, tmp_path: Path
) -> None:
    expected = iteration("reference", policy(), data, same_noise, tmp_path)
    found = iteration("ours", policy(), data, same_noise, tmp_path)
    assert len(expected.images) == len(REWARDS)
    # Of 256 values; a pixel may be rounded otherwise.
    assert np.abs(found.images - expected.images).max() <= 1
    assert 0 < found.clipped < 1  # else clipping is not compared
    assert len(found.gradients) == len(expected.gradients) == 2
    for ours, theirs in zip(found.gradients, expected.gradients, strict=True):
        assert float(theirs.norm()) > 0
        assert float((ours - theirs).norm() / theirs.norm()) < 1e-4
