"""Every row of the benchmark does the same work in another way, and as often as its name says."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks.ablations import ITERATION, OURS, REFERENCE, ROWS, Row, make_trainer, measure
from benchmarks.counters import counting
from benchmarks.lower_bound import lower_bound
from benchmarks.workloads import TINY, Workload
from chunk_grpo.training.run import TrainingData

SMALL = Workload("small", TINY, 32, 2, 2, 8, 1, sizes=(1, 3))


@pytest.fixture(scope="module")
def data() -> TrainingData:
    return SMALL.data()


def step_of(row: Row, data: TrainingData, folder: Path) -> Tensor:
    """Change of the weights in one iteration of the row, as one vector."""
    base = torch.cat([w.flatten() for w in SMALL.family().transformer.parameters()])
    with counting():
        trainer = make_trainer(row, SMALL, data, folder)
        trainer.iterate(ITERATION)
    return torch.cat([w.detach().flatten() for w in trainer._family.transformer.parameters()]) - base


@pytest.fixture(scope="module")
def by_the_reference(data: TrainingData, tmp_path_factory: pytest.TempPathFactory) -> Tensor:
    return step_of(Row(REFERENCE), data, tmp_path_factory.mktemp("reference"))


@pytest.mark.parametrize("row", ROWS[1:], ids=lambda row: row.name)
def test_an_iteration_moves_the_weights_as_the_reference_does(
    row: Row, data: TrainingData, by_the_reference: Tensor, tmp_path: Path
) -> None:
    """AdamW's first steps have the gradient's sign alone, so that rounding moves weights of a gradient near 0."""
    step = step_of(row, data, tmp_path)
    assert float(by_the_reference.norm()) > 0
    assert float((step - by_the_reference).norm() / by_the_reference.norm()) < 0.05


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_model_runs_as_often_as_counted(row: Row, data: TrainingData) -> None:
    found, least = measure(row, SMALL, data), lower_bound(SMALL)
    first, second = least.items
    divided = (
        3 * (second - 2) // 2
    )  # items of the second update's chunks of 3 steps, which need a pass for ratios
    more = divided if row.name == "update items one by one" else 0
    assert (found.forward_states, found.backward_states) == (least.forwards + more, least.backwards)
    calls = {  # of the rollout, of the updates; elsewhere all images and all items of an update are one call
        REFERENCE: 20 + first + second,
        "rollouts one by one": 20 + 2,
        "update items one by one": 5 + first + second + divided,
    }
    assert found.forward_calls == calls.get(row.name, 5 + 2)
    assert found.rollout > 0 and found.update > 0 and 0 < found.outside < 1
    assert found.rollout + found.reward + found.update <= found.seconds * 1.001


def test_the_counts_worked_by_hand() -> None:
    """4 images of 5 steps; each update trains one chunk, of 1 or 3 steps, of each of its 2 images."""
    least = lower_bound(SMALL)
    assert least.rollout == 20
    assert all(items in (2, 4, 6) for items in least.items)
    assert least.forwards == 20 + least.items[0] + least.items[1]
    assert least.backwards == sum(least.items)
    assert [row.name for row in ROWS[:2]] == [REFERENCE, OURS]
