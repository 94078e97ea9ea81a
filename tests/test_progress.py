"""Progress in a log, where nothing can be redrawn."""

import pytest

from chunk_grpo import progress
from chunk_grpo.progress import Meter


def test_a_log_gets_a_last_line_and_no_more_than_needed(capsys: pytest.CaptureFixture[str]) -> None:
    with Meter("training", 3) as meter:
        for reward in (0.1, 0.2, 0.3):
            meter.advance(note=f"reward {reward}")
    captured = capsys.readouterr()
    assert captured.out == ""  # stdout is for results
    assert captured.err == "training: 3/3 reward 0.3, 0 s left\n"


def test_progress_line_shows_remaining_seconds(capsys, monkeypatch):
    """Started at 4 of 10 units, two more in 20 s: the last 4 take 40 s."""
    clock = iter([100.0, 105.0, 120.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with Meter("drawing [base]", 10, done=4) as meter:
        meter.advance()
        meter.advance()
    assert capsys.readouterr().err == ("drawing [base]: continues at 4/10\ndrawing [base]: 6/10, 40 s left\n")


def test_parts_of_units_are_counted_and_whole_units_shown(capsys, monkeypatch):
    """After 30 of 2 x 50 parts in 30 s: no unit is whole, and the last 70 parts take 70 s."""
    clock = iter([100.0, 130.0, 200.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with Meter("drawing", 2, parts=50) as meter:
        meter.advance(30)
        meter.advance(70)
    assert capsys.readouterr().err == "drawing: 0/2, 70 s left\ndrawing: 2/2, 0 s left\n"


def test_a_terminal_gets_a_bar_with_whole_units(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    with Meter("drawing", 4, done=1, parts=50) as meter:
        meter.advance(149)
        meter.advance(1)
    assert "4/4" in capsys.readouterr().err
