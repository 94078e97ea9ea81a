"""Every row of the benchmark does the same work in another way, and as often as its name says."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks.accounts import accounting
from benchmarks.configurations import TINY, Configuration
from benchmarks.minimum import counted_minimum
from benchmarks.rows import ITERATION, OURS, REFERENCE, ROWS, make_trainer, measure
from chunk_grpo.training.run import TrainingData

SMALL = Configuration("small", TINY, 32, 2, 2, 8, 1, sizes=(1, 3))
SHARED = [row for row in ROWS if "same_noise_in_group" in row.settings]
APART = [row for row in ROWS if row not in SHARED]


@pytest.fixture(scope="module")
def data() -> TrainingData:
    return SMALL.data()


def step_of(name: str, data: TrainingData, folder: Path) -> Tensor:
    """How far an iteration of the row moves the weights, as one vector."""
    row = next(row for row in ROWS if row.name == name)
    base = torch.cat([w.flatten() for w in SMALL.family().transformer.parameters()])
    with accounting(), row.replaced():
        trainer = make_trainer(row, SMALL, data, folder)
        trainer.iterate(ITERATION)
    return torch.cat([w.detach().flatten() for w in trainer._family.transformer.parameters()]) - base


@pytest.fixture(scope="module")
def by_the_reference(data: TrainingData, tmp_path_factory: pytest.TempPathFactory) -> Tensor:
    return step_of(REFERENCE, data, tmp_path_factory.mktemp("reference"))


@pytest.mark.parametrize("name", [row.name for row in APART if row.name != REFERENCE])
def test_an_iteration_moves_the_weights_as_the_reference_does(
    name: str, data: TrainingData, by_the_reference: Tensor, tmp_path: Path
) -> None:
    """AdamW's first steps have the gradient's sign alone, so that rounding moves weights of a gradient near 0."""
    step = step_of(name, data, tmp_path)
    assert float((step - by_the_reference).norm() / by_the_reference.norm()) < 0.05
    assert float(by_the_reference.norm()) > 0


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_model_runs_as_often_as_counted(row, data: TrainingData) -> None:  # type: ignore[no-untyped-def]
    found = measure(row, SMALL, data)
    least = counted_minimum(SMALL, row in SHARED)
    first, second = least.items
    divided = 3 * (second - 2) // 2  # items of its chunks of 3 steps
    more = {
        "update items one by one": divided,
        "first pass for all chunks": second,
        "first pass also on policy": first + second,
        "- first evaluation not shared": SMALL.images - SMALL.prompts,
    }
    assert found.forward_states == least.forwards + more.get(row.name, 0)
    assert found.backward_states == least.backwards
    calls = {  # of the rollout, of the updates; elsewhere all images and all items of an update are one call
        REFERENCE: 20 + first + second,
        "rollouts one by one": 20 + 2,
        "update items one by one": 5 + first + second + divided,
        "first pass for all chunks": 5 + 3,
        "first pass also on policy": 5 + 4,
    }
    if row.name != "activations of chunks held":
        assert found.forward_calls == calls.get(row.name, 5 + 2)
    assert found.rollout > 0 and found.update > 0 and 0 < found.outside < 1
    assert found.rollout + found.reward + found.update <= found.seconds * 1.001


def test_the_counts_worked_by_hand(data: TrainingData) -> None:
    """4 images of 5 steps; each update trains one chunk, of 1 or 3 steps, of each of its 2 images."""
    least = counted_minimum(SMALL, same_noise=False)
    assert least.rollout == 20
    assert counted_minimum(SMALL, same_noise=True).rollout == 18
    assert all(items in (2, 4, 6) for items in least.items)
    assert least.forwards == 20 + least.items[0] + least.items[1]
    assert least.backwards == sum(least.items)
    assert {OURS, REFERENCE} <= {row.name for row in ROWS}
