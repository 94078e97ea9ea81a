"""`chunk_grpo.planning` against the evaluations of a short training, counted by benchmarks.counters."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.counters import counting
from chunk_grpo.planning.images import heldout_evaluations
from chunk_grpo.planning.models import read_checkpoint
from chunk_grpo.planning.passes import iteration
from chunk_grpo.planning.settings import settings_of
from tests.training.conftest import OPTIONS, small_params

STEP: dict[str, Any] = {"objective": "step", "plan": "step", "fraction": 0.5}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "steps, KL": (STEP, {}),
    "old log-probabilities again": (STEP, {"old_log_probs": "training", "kl_coef": 0.0}),
    "chunks divided": (
        {"objective": "chunk", "plan": "single", "fraction": 1.0},
        {"micro_batch_size": 3, "rollout_batch_size": 3},
    ),
    "chunks whole": ({"objective": "chunk", "plan": "listed", "fraction": 1.0}, {"micro_batch_size": 6}),
    "images noised again": ({**STEP, "likelihood": "matching", "clip_range": 0.2}, {}),
    "images noised again, no ratio": (
        {"objective": "chunk", "plan": "single", "fraction": 1.0, "likelihood": "nft"},
        {"micro_batch_size": 3, "rollout_batch_size": 3},
    ),
    "common noise": (STEP, {"same_noise_in_group": True}),
    "window": ({**STEP, "window": {"num_steps": 2, "stride": 1, "every": 1}}, {}),
    "branches": (
        {**STEP, "fraction": 1.0, "branching": {"points": 4, "children": 2}},
        {"group_size": 4, "micro_batch_size": 8},
    ),
    "held-out at times": (STEP, {"heldout": {"every": 2}}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_plan_counts_what_training_evaluates(
    case: str, train: Callable[..., Any], tmp_path: Path
) -> None:
    """States and passes are exact here: steps are drawn, or all chunks, or all branch points."""
    variant, changes = CASES[case]
    with counting() as counted:
        train(tmp_path, variant=variant, **changes)
    params = small_params(variant, **{**changes, "heldout": dict(changes.get("heldout", {}))})
    settings = settings_of(params, read_checkpoint(params.model.family, OPTIONS.checkpoint), 1)
    planned, iterations = iteration(settings, "it"), params.train.iterations
    watched = heldout_evaluations(settings.params.train)
    purposes = (planned.rollout, planned.old_log_probs, planned.ratio, planned.update, planned.reference)
    states = iterations * sum(count.states for count in purposes) + watched * planned.heldout.states
    passes = iterations * sum(count.passes for count in purposes) + watched * planned.heldout.passes
    assert counted.forward_states == states
    assert counted.backward_states == iterations * planned.update.states
    assert counted.forward_calls == passes
