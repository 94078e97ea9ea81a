"""The measurement of quantised bases finds what rounding must do: a byte a weight errs less than half a byte."""

from benchmarks.quantised import row


def test_a_row_of_each_size() -> None:
    one, half = (row("flux", precision) for precision in ("int8", "nf4"))
    assert [cells[:2] for cells in (one, half)] == [["`int8`", "tiny-flux"], ["`nf4`", "tiny-flux"]]
    assert 0.5 < float(half[2]) < float(one[2]) < 4
    assert 0 < float(one[3].rstrip("%")) < float(half[3].rstrip("%")) < 50
    assert 0 < float(one[5]) < float(half[5])
