"""The rates are of what their names say."""

import pytest

from benchmarks.configurations import TEXT_TOKENS, configurations
from benchmarks.rates import COLUMNS, Rate, measured


def test_the_operations_are_those_of_the_work() -> None:
    """A network of width 512 on 64 image tokens: the product is [states * tokens, 512] with [512, 2048]."""
    with configurations() as known:
        found = {(rate.work, rate.states): rate for rate in measured(known["compute-bound"].quick(), 2)}
    assert {states for _, states in found} == {1, 8}
    for states in (1, 8):
        product, forward, both = (
            found[work, states]
            for work in ("matrix product of the MLP", "forward, no gradient", "forward and backward")
        )
        assert product.flop == 2 * states * (64 + TEXT_TOKENS) * 512 * 2048
        # The gradient of the input and that of the weights, but for the few layers that the data enter.
        assert 2.9 < both.flop / forward.flop < 3
        assert all(len(rate.seconds) == 2 for rate in (product, forward, both))


def test_a_row_of_the_table_is_per_state() -> None:
    cells = Rate("forward", 4, (0.5, 0.1, 0.2), 8_000_000_000).cells()
    assert cells == ["forward", "4", "50.00 (25.00 to 125.00)", "2.00", "40"]
    assert len(cells) == len(COLUMNS)
    assert float(cells[-1]) == pytest.approx(8 / 0.2)
