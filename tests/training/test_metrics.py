"""Metrics of an iteration, before they become a table."""

import math

import pytest

from chunk_grpo.training.metrics import finite_rows


def test_non_finite_metrics_are_dropped_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """A training of days is not lost because a table would refuse one of its numbers."""
    rows = [(1, "kl", 0.1), (1, "profile_drift", math.inf), (2, "kl", math.nan)]
    assert finite_rows(rows) == rows[:1]
    assert caplog.messages == [
        "2 metrics are not finite and left out: profile_drift of iteration 1, kl of iteration 2"
    ]
    caplog.clear()
    assert finite_rows(rows[:1]) == rows[:1] and caplog.messages == []
