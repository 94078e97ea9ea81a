"""The command from its options to its tables."""

import json
from pathlib import Path

import pytest

from benchmarks import train
from benchmarks.memory import Peaks
from benchmarks.report import sheets
from benchmarks.results import medians, targets
from benchmarks.rows import OURS, REFERENCE

RECORD = {
    "seconds": 4.0,
    "rollout": 2.0,
    "reward": 0.5,
    "update": 1.5,
    "model": 3.0,
    "forward_states": 20,
    "forward_calls": 10,
    "backward_states": 8,
    "backward_calls": 2,
}


def results(reference: float, ours: float, quick: bool = False) -> dict[str, object]:
    rows = {REFERENCE: [RECORD | {"seconds": reference}], OURS: [RECORD | {"seconds": ours}]}
    least = {"forwards": 16, "backwards": 8}
    part = {
        "about": "few images",
        "rows": rows,
        "minimum": {REFERENCE: least, OURS: least},
        "memory": [{"trajectories": 1, "autograd": 7 * 2**20, "ours": 2**20}],
    }
    return {"machine": {"cpu": "toy"}, "quick": quick, "configurations": {"shipped": part}}


def test_the_command_measures_prints_and_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "chunk_peaks", lambda configuration, count: Peaks(count, 70, 10))
    path = tmp_path / "found.json"
    options = ["--quick", "--configurations", "shipped", "--rows", REFERENCE, OURS, "--json", str(path)]
    train.main([*options, "--repetitions", "2", "--markdown"])
    printed = capsys.readouterr().out
    found = json.loads(path.read_text())
    part = found["configurations"]["shipped"]
    assert {name: len(records) for name, records in part["rows"].items()} == {REFERENCE: 2, OURS: 2}
    assert {"cpu", "threads", "torch", "commit"} <= set(found["machine"])
    train.main(["--from", str(path), "--markdown"])
    assert capsys.readouterr().out == printed
    assert "| ours |" in printed and "Targets" not in printed


def test_medians_are_of_each_column_and_the_spread_of_the_seconds() -> None:
    records = [RECORD | {"seconds": value, "rollout": 3 * value} for value in (5.0, 4.0, 40.0)]
    found = medians(records)
    assert (found["seconds"], found["least"], found["largest"], found["rollout"]) == (5, 4, 40, 15)
    assert found["outside"] == pytest.approx((5 - 3.5) / 5)


@pytest.mark.parametrize(("reference", "met"), [(14.0, True), (13.9, False)])
def test_the_speed_is_held_against_its_target(reference: float, met: bool) -> None:
    speed, outside, memory = targets(results(reference, 4.0))
    assert (speed.met, speed.found) == (met, f"{reference / 4:.2f} times")
    assert (outside.met, outside.found) == (False, "12.5%")
    assert (memory.met, memory.found) == (True, "0.14")


def test_the_tables_hold_the_numbers() -> None:
    times, counts, memory, verdicts = sheets(results(14.0, 4.0))
    assert list(times.rows[1]) == ["ours", "4.00 (4.00 to 4.00)", "3.50", "2.00", "1.50", "0.50", "12.5%"]
    assert list(counts.rows[1]) == ["ours", "20", "1.250", "10", "8", "1.000", "2"]
    assert list(memory.rows[0]) == ["shipped", "1", "7.0", "1.0", "0.14"]
    assert [row[-1] for row in verdicts.rows] == ["yes", "NO", "yes"]
    assert len(sheets(results(14.0, 4.0, quick=True))) == 3
    assert "| ours | 4.00 (4.00 to 4.00) |" in times.as_markdown()
    assert times.for_terminal().row_count == 2
