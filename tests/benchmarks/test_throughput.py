"""Counted operations and throughput of the measured calls."""

from collections.abc import Callable

import pytest
from torch.utils.benchmark import Measurement, TaskSpec

from benchmarks import throughput
from benchmarks.workloads import TEXT_TOKENS, workloads


def test_counted_operations_match_matrix_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network of width 512 on 64 image tokens: the product is [states * tokens, 512] with [512, 2048]."""

    def timed(call: Callable[[], object], min_run_time: float) -> Measurement:
        return Measurement(1, [0.5, 0.1, 0.2], TaskSpec("call()", "pass"))

    monkeypatch.setattr(throughput, "timed", timed)
    with workloads() as known:
        rows = throughput.measured(known["compute-bound"].quick(), 0.1)
    product, forward, both = (float(row[3]) for row in rows[:3])
    assert [row[1] for row in rows] == ["1"] * 3 + ["8"] * 3
    expected = 2 * (64 + TEXT_TOKENS) * 512 * 2048 / 1e9
    assert product == pytest.approx(expected, abs=0.005)
    # The gradient of the input and that of the weights, but for the few layers that the data enter.
    assert 2.8 < both / forward < 3.1
    assert rows[3][2] == "25.00 (12.50 to 62.50)"
    assert rows[3][4] == f"{8 * expected / 0.2:.0f}"
