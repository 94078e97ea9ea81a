"""The tables of the orchestration benchmark, from rounds by hand."""

from __future__ import annotations

from benchmarks.orchestration import FlowTimes, Round, by_stage, summary
from benchmarks.sheets import spread


def made(train: float, repro: float, here: float, pools: float, cached: float) -> Round:
    """A round of four stages, of which three take a second each when bare."""
    others = {"prepare": 1.0, "generate": 1.0, "report": 1.0}
    return Round(
        bare=others | {"train": train},
        repro=repro,
        here=FlowTimes(here, others | {"train": train + 1}),
        pools=FlowTimes(pools, others | {"train": train + 2}),
        cached=FlowTimes(cached, {}),
    )


ROUNDS = [made(7, 14, 18, 22, 5), made(13, 16, 28, 30, 9)]
"""Bare they take 10 and 16 s."""


def test_a_way_is_compared_with_bare_of_the_same_round() -> None:
    assert summary("smoke", ROUNDS).rows == [
        ("every stage bare, one after the other", "13.0 (10.0 to 16.0)", ""),
        ("dvc repro", "15.0 (14.0 to 16.0)", "0.50 (0.00 to 1.00)"),  # 4 and 0 s more, by four stages
        ("flow run without pools, nothing cached", "23.0 (18.0 to 28.0)", "2.50 (2.00 to 3.00)"),  # 8 and 12
        ("flow run, nothing cached", "26.0 (22.0 to 30.0)", "3.25 (3.00 to 3.50)"),  # 12 and 14
        ("flow run, everything cached", "7.0 (5.0 to 9.0)", ""),
    ]


def test_each_stage_has_a_row_with_bare_and_both_flows() -> None:
    found = by_stage(ROUNDS).rows
    assert [row[0] for row in found] == ["prepare", "generate", "report", "train"]
    assert found[-1] == ("train", "10.0 (7.0 to 13.0)", "11.0 (8.0 to 14.0)", "12.0 (9.0 to 15.0)")


def test_one_round_has_no_range() -> None:
    assert spread([1.25], 1) == "1.2"
