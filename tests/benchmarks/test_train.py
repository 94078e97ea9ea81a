"""The command from its options to its tables."""

import json
from pathlib import Path

import pytest

from benchmarks import train
from benchmarks.ablations import OURS, REFERENCE, Cost
from benchmarks.lower_bound import LowerBound
from benchmarks.tables import machine


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
    assert [cell.strip() for cell in counts[8:10]] == ["30", "1.000"]
    assert "| shipped  |                    1 |" in printed


def test_the_table_worked_by_hand() -> None:
    """Medians of each column; the share and the counts as measured."""

    def cost(seconds: float) -> Cost:
        return Cost(seconds, 3 * seconds, 1.5, 0.5, seconds / 40, 20, 10, 8)

    costs = {REFERENCE: [cost(15.0)], OURS: [cost(5.0), cost(4.0), cost(40.0)]}
    _, ours = train.lines(costs, LowerBound(8, (4, 4)))
    assert ours == [
        *("ours", "5.00 (4.00 to 40.00)", "3.00", "15.00", "1.50", "0.50", "12.5%"),
        *("20", "1.250", "10", "8", "1.000"),
    ]
