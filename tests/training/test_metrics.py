"""Metrics of an iteration, before they become a table."""

import math

import pytest
import torch

from chunk_grpo.training.metrics import StepSums, finite_rows, reward_metrics, update_metrics
from chunk_grpo.training.update import UpdateStats


def test_non_finite_metrics_are_dropped_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """A training of days is not lost because a table would refuse one of its numbers."""
    rows = [(1, "kl", 0.1), (1, "profile_drift", math.inf), (2, "kl", math.nan)]
    assert finite_rows(rows) == rows[:1]
    assert caplog.messages == ["2 metrics are not finite and left out: profile_drift of iteration 1, kl of iteration 2"]
    caplog.clear()
    assert finite_rows(rows[:1]) == rows[:1] and caplog.messages == []


def test_metrics_of_two_updates_by_hand() -> None:
    """Chunks 0, 2 and 2 with four items, then chunk 2 with one."""
    updates = [
        UpdateStats(
            torch.tensor(ratios),
            torch.tensor(chunk),
            torch.tensor(clipped),
            kl_sum,
            items,
            0.0 * items,
            torch.zeros(2, 4),
            3,
        )
        for ratios, chunk, clipped, kl_sum, items in (
            ([0.5, 1.0, 1.5], [0, 2, 2], [False, False, True], 1.0, torch.arange(4)),
            ([2.0], [2], [True], 0.5, torch.arange(1)),
        )
    ]
    assert update_metrics(updates, [3.0, 1.0]) == pytest.approx(
        {
            "ratio_mean": 1.5,
            "ratio_min": 0.5,
            "ratio_max": 2.0,
            "clip_fraction": (1 / 3 + 1) / 2,
            "kl": 1.5 / 5,
            "trained_steps": 5.0,
            "skipped_steps": 6.0,
            "grad_norm": 2.0,
            "chunk_draws/0": 1.0,
            "chunk_clip_fraction/0": 0.0,
            "chunk_draws/1": 0.0,
            "chunk_draws/2": 3.0,
            "chunk_clip_fraction/2": 2 / 3,
        }
    )


def moved(steps: list[int], changes: list[float], selected: list[int], clipped: list[int]) -> UpdateStats:
    """Statistics with what the sums by step read."""
    one = torch.ones(1)
    by_step = torch.tensor([selected, clipped], dtype=torch.float64)
    return UpdateStats(one, one.long(), one.bool(), 0.0, torch.tensor(steps), torch.tensor(changes), by_step)


def test_clipping_by_update_and_step_of_two_iterations_by_hand() -> None:
    """Step 0: 1 of 2, then 2 of 2; step 1: never; step 2: none of 3, one of which was not passed."""
    first = moved([0, 0, 2, 2, 2], [0.0] * 5, [2, 0, 3], [0, 0, 0])
    sums, again = StepSums(2, 3), StepSums(2, 3)
    sums.add([first, moved([0, 0, 2], [0.25, -0.5, 0.125], [2, 0, 2], [1, 0, 0])])
    again.load_state(sums.state())
    again.add([first, moved([0, 0], [-1.0, 0.25], [2, 0, 1], [2, 0, 0])])
    assert again.metrics() == {
        "step_clip_fraction/1/0": 0.75,
        "step_log_ratio/1/0": 0.5,  # (0.25 + 0.5 + 1 + 0.25) / 4
        "step_clip_fraction/1/2": 0.0,
        "step_log_ratio/1/2": 0.125,
    }
    assert sums.metrics()["step_clip_fraction/1/0"] == 0.5  # a checkpoint's sums stay as they are
    assert StepSums(1, 3).metrics() == {}
    two_processes = UpdateStats.of_all([moved([0], [0.5], [1, 2], [1, 0]), moved([1], [0.0], [3, 0], [0, 0])])
    assert two_processes.by_step.tolist() == [[4, 2], [1, 0]]


@pytest.mark.parametrize(
    ("advantages", "degenerate"),
    [([0.0, 0.0, 1.0, -1.0], 1), ([[0.0, 0.0], [0.0, 0.0], [0.0, 1.0], [0.0, -1.0]], 1), ([[0.0, 1.0]] * 4, 0)],
)
def test_a_group_is_degenerate_if_all_its_advantages_are_0(advantages: list[float], degenerate: int) -> None:
    """Of equal rewards in the first group; with gains of chunks they may still have advantages."""
    rewards = torch.tensor([[0.5, 0.5], [1.0, 0.0]])
    metrics = reward_metrics(rewards, {}, torch.tensor(advantages))
    assert metrics["degenerate_groups"] == degenerate
