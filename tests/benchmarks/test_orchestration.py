"""The table of the orchestration benchmark, from rounds by hand."""

from benchmarks.orchestration import BARE, CACHED, HERE, ON_POOLS, REPRO, summary

ROUNDS = [
    {BARE: 10.0, REPRO: 14.0, HERE: 18.0, ON_POOLS: 22.0, CACHED: 5.0},
    {BARE: 16.0, REPRO: 16.0, HERE: 28.0, ON_POOLS: 30.0, CACHED: 9.0},
]


def test_a_way_is_compared_with_bare_of_the_same_round() -> None:
    assert list(summary(4, ROUNDS)) == [
        (BARE, "13.0 (10.0 to 16.0)", ""),
        (REPRO, "15.0 (14.0 to 16.0)", "0.50 (0.00 to 1.00)"),  # 4 and 0 s more, by four stages
        (HERE, "23.0 (18.0 to 28.0)", "2.50 (2.00 to 3.00)"),  # 8 and 12
        (ON_POOLS, "26.0 (22.0 to 30.0)", "3.25 (3.00 to 3.50)"),  # 12 and 14
        (CACHED, "7.0 (5.0 to 9.0)", ""),
    ]
