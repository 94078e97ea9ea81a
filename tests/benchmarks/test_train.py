"""The command from its options to its tables, and how often each row runs the model."""

import json
from pathlib import Path

import pytest

from benchmarks import train
from benchmarks.ablations import OURS, REFERENCE, ROWS, Cost, Row, measure
from benchmarks.tables import machine
from benchmarks.workloads import TINY, Workload
from chunk_grpo.training.run import TrainingData

SMALL = Workload("small", TINY, 32, 2, 2, 8, 1, sizes=(1, 3))
"""4 images of 5 steps. By the benchmark's seed the first update trains the chunk of 3 steps of both its images, 6
items, the second one that of one image and the chunk of 1 step of the other, 4 items."""


@pytest.fixture(scope="module")
def data() -> TrainingData:
    return SMALL.data()


@pytest.mark.slow
def test_the_command_measures_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "found.json"
    options = ["--quick", "--workloads", "shipped", "--rows", REFERENCE, OURS, "--repetitions", "2"]
    train.main([*options, "--json", str(path)])
    printed = capsys.readouterr().out
    found = json.loads(path.read_text())
    assert found["machine"] == machine() and found["machine"]["commit"] != "unknown"
    rows = found["workloads"]["shipped"]["rows"]
    assert {name: len(costs) for name, costs in rows.items()} == {REFERENCE: 2, OURS: 2}
    (counts,) = (line.split("|") for line in printed.splitlines() if line.startswith("| ours "))
    assert counts[8].strip() == "30"
    assert "| shipped  |                    1 |" in printed


def test_the_table_worked_by_hand() -> None:
    """Medians of each column; the share and the counts as measured."""

    def cost(seconds: float) -> Cost:
        return Cost(seconds, 3 * seconds, 1.5, 0.5, seconds / 40, 20, 10, 8)

    costs = {REFERENCE: [cost(15.0)], OURS: [cost(5.0), cost(4.0), cost(40.0)]}
    _, ours = train.lines(costs)
    assert ours == [
        *("ours", "5.00 (4.00 to 40.00)", "3.00", "15.00", "1.50", "0.50", "12.5%", "20", "10", "8"),
    ]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_model_runs_as_often_as_worked_by_hand(row: Row, data: TrainingData) -> None:
    """No more than the method needs, but for the ratio of a chunk of 3 steps that is not in one pass."""
    found = measure(row, SMALL, data)
    divided = 3 if row.name == "update items one by one" else 0
    assert (found.forward_states, found.backward_states) == (20 + 6 + 4 + divided, 6 + 4)
    calls = {  # of the rollout, of the updates; elsewhere all images and all items of an update are one call
        REFERENCE: 20 + 6 + 4,
        "rollouts one by one": 20 + 2,
        "update items one by one": 5 + 6 + 4 + divided,
    }
    assert found.forward_calls == calls.get(row.name, 5 + 2)
    assert found.rollout > 0 and found.update > 0 and 0 < found.outside < 1
    assert found.rollout + found.reward + found.update <= found.seconds * 1.001
