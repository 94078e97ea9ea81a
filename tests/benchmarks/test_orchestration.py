"""The tables of the orchestration benchmark, from rounds by hand."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from benchmarks.orchestration import FlowTimes, Round, by_stage, spread, summary

FIRST = Round(
    bare={"prepare": 2.0, "train": 8.0},
    repro=11.0,
    here=FlowTimes(14.0, {"prepare": 3.0, "train": 9.0}),
    pools=FlowTimes(20.0, {"prepare": 3.0, "train": 10.0}),
    cached=FlowTimes(5.0, {"prepare": 0.1, "train": 0.1}),
)
SECOND = Round(
    bare={"prepare": 4.0, "train": 12.0},
    repro=17.0,
    here=FlowTimes(18.0, {"prepare": 5.0, "train": 13.0}),
    pools=FlowTimes(22.0, {"prepare": 5.0, "train": 12.0}),
    cached=FlowTimes(6.0, {"prepare": 0.1, "train": 0.1}),
)


def printed(table: Table) -> str:
    console = Console(width=120)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_a_way_is_compared_with_bare_of_the_same_round() -> None:
    text = printed(summary("smoke", [FIRST, SECOND]))
    assert "2 stages, 2 rounds" in text
    assert "13.0 (10.0 to 16.0)" in text
    row = next(line for line in text.splitlines() if "without pools" in line)
    # (14 - 10) / 2 and (18 - 16) / 2
    assert "16.0 (14.0 to 18.0)" in row
    assert "1.50 (1.00 to 2.00)" in row


def test_each_stage_has_a_row() -> None:
    text = printed(by_stage([FIRST, SECOND]))
    row = next(line for line in text.splitlines() if "train" in line)
    assert [part in row for part in ("10.0 (8.0 to 12.0)", "11.0 (9.0 to 13.0)", "11.0 (10.0 to 12.0)")] == [
        True
    ] * 3


def test_one_round_has_no_range() -> None:
    assert spread([1.25], 1) == "1.2"
