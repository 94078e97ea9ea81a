"""`chunk_grpo.planning.dry_run` against the evaluations of a training of the toy network."""

from typing import Any

import pytest

from chunk_grpo.planning.counters import counting
from chunk_grpo.planning.dry_run import count_iteration
from chunk_grpo.planning.images import heldout_evaluations
from tests.training.conftest import small_params

STEP: dict[str, Any] = {"objective": "step", "plan": "step", "fraction": 0.5}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "steps, KL": (STEP, {}),
    "chunks divided": (
        {"objective": "chunk", "plan": "single", "fraction": 1.0},
        {"micro_batch_size": 3, "rollout_batch_size": 3},
    ),
    "images noised again": ({**STEP, "likelihood": "matching", "clip_range": 0.2}, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_network_of_one_weight_is_evaluated_as_often_as_the_toy(case, train, tmp_path):
    """Their counts do not depend on the draws."""
    variant, changes = CASES[case]
    with counting() as counted:
        train(tmp_path, variant=variant, iterations=2, **changes)
    params = small_params(variant, iterations=2, **changes)
    found, iterations = count_iteration(params, "it"), params.train.iterations
    expected = {
        "rollout": (found.rollout, iterations),
        "old": (found.old_log_probs, iterations),
        "ratio": (found.ratio, iterations),
        "update": (found.update, iterations),
        "reference": (found.reference, iterations),
        "heldout": (found.heldout, heldout_evaluations(params.train)),
    }
    for purpose, (count, number) in expected.items():
        real = counted.counts[purpose]  # type: ignore[index]
        assert (real.states, real.passes) == (number * count.states, number * count.passes), purpose
