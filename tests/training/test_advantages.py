"""Advantages of a variant: of one reward or several, of the group or all, of the trajectory or each chunk."""

from typing import Any

import numpy as np
import pytest
import torch

from chunk_grpo.training.advantages import advantages_of
from chunk_grpo.training.rollouts import Experience

from .conftest import CHUNK_WS, method_of, small_params

GRADED = np.array([0.0, 1.0, 2.0, 4.0, 4.0, 4.0])
VIVID = np.array([1.0, 0.0, 0.5, 0.0, 1.0, 2.0])
WEIGHTS = {"shapes-graded": 1.0, "shapes-vivid": 0.6}


def advantages(**changes: Any) -> torch.Tensor:
    """Advantages of two groups of three; the second group's first reward is constant."""
    scores = {"shapes-graded": GRADED, "shapes-vivid": VIVID}
    made = Experience(None, None, 3, scores, {})  # neither is looked at
    return advantages_of(made, WEIGHTS, method_of(small_params({**CHUNK_WS, **changes})))


def standard(values: np.ndarray, std: float | None = None, eps: float = 1e-8) -> np.ndarray:
    return (values - values.mean()) / ((values.std(ddof=1) if std is None else std) + eps)


def test_the_weighted_sum_of_rewards_is_standardised_within_the_group():
    total = (GRADED + 0.6 * VIVID).reshape(2, 3)
    assert advantages().tolist() == pytest.approx(np.concatenate([standard(row) for row in total]))


def test_global_std_uses_all_images():
    total = (GRADED + 0.6 * VIVID).reshape(2, 3)
    wanted = np.concatenate([standard(row, total.std(), 1e-4) for row in total])
    assert advantages(advantage_std="global").tolist() == pytest.approx(wanted)


def test_combined_advantages_weight_each_reward_by_its_share():
    """A group in which one reward is the same for all learns from the other alone."""
    graded = np.concatenate([standard(GRADED[:3]), np.zeros(3)])
    vivid = np.concatenate([standard(VIVID[:3]), standard(VIVID[3:])])
    wanted = (graded + 0.6 * vivid) / 1.6
    assert advantages(combine="advantages").tolist() == pytest.approx(wanted)


def test_gdpo_standardises_the_sum_over_the_iteration():
    graded = np.concatenate([standard(GRADED[:3]), np.zeros(3)])
    vivid = np.concatenate([standard(VIVID[:3]), standard(VIVID[3:])])
    assert advantages(combine="gdpo").tolist() == pytest.approx(standard(graded + 0.6 * vivid))


def test_each_chunk_may_have_rewards_of_its_own():
    mixes = ({"shapes-graded": 1.0}, {"shapes-vivid": 2.0, "shapes-graded": 1.0})
    made = advantages(chunk_rewards=mixes)
    both = (GRADED + 2 * VIVID).reshape(2, 3)
    assert made.shape == (6, 2)
    assert made[:, 0].tolist() == pytest.approx([*standard(GRADED[:3]), 0, 0, 0])
    assert made[:, 1].tolist() == pytest.approx(np.concatenate([standard(row) for row in both]))


def gains(**changes: Any) -> torch.Tensor:
    """Advantages by gains of the same images: scores of those predicted at the beginning of two chunks are known."""
    at_start, between = np.array([0.0, 0.0, 0.0, 1.0, 2.0, 3.0]), np.array([1.0, 0.0, 0.0, 5.0, 5.0, 5.0])
    predicted = {
        "shapes-graded": np.stack([at_start, between], axis=1),
        "shapes-vivid": np.stack([between, at_start], axis=1),
    }
    scores = {"shapes-graded": GRADED, "shapes-vivid": VIVID}
    made = Experience(None, None, 3, scores, {}, predicted)
    return advantages_of(made, WEIGHTS, method_of(small_params({**CHUNK_WS, "credit": "chunk-gains", **changes})))


def test_gains_are_of_the_weighted_sum_from_boundary_to_boundary():
    """R = graded + 0.6 vivid at the first noise, at the boundary and of the image; each chunk has its own deviation."""
    boundaries = np.stack(
        [[0.6, 0.0, 0.0, 4.0, 5.0, 6.0], [1.0, 0.0, 0.0, 5.6, 6.2, 6.8], GRADED + 0.6 * VIVID], axis=1
    ).reshape(2, 3, 3)
    gained = np.diff(boundaries, axis=2)
    by_group = [[standard(gained[group, :, chunk]) for chunk in (0, 1)] for group in (0, 1)]
    wanted = np.moveaxis(np.array(by_group), 1, 2).reshape(6, 2)
    assert gains().numpy() == pytest.approx(wanted, abs=1e-6)  # the gains of group 1 in chunk 1 are alike
    wanted = (gained - gained.mean(axis=1, keepdims=True)) / (gained.std(axis=(0, 1)) + 1e-4)
    assert gains(advantage_std="global").numpy() == pytest.approx(wanted.reshape(6, 2))


def test_equal_rewards_give_zero_advantage():
    scores = {"shapes-graded": np.ones(3), "shapes-vivid": np.full(3, 0.3)}
    made = Experience(None, None, 3, scores, {})
    for changes in ({}, {"advantage_std": "global"}, {"combine": "advantages"}, {"combine": "gdpo"}):
        method = method_of(small_params({**CHUNK_WS, **changes}))
        assert advantages_of(made, WEIGHTS, method).tolist() == [0, 0, 0]
