"""chunk_grpo/outcomes.py: an outcome as text and in the table."""

from __future__ import annotations

import pytest

from chunk_grpo.outcomes import Outcome, RemoteError, StageOutcome, outcome_table, summary


@pytest.mark.parametrize("outcome", ["ran", "restored", "pulled", "unchanged"])
def test_outcome_survives_as_text(outcome: Outcome) -> None:
    text = str(StageOutcome("s", outcome, 1.26, 10))
    assert StageOutcome.parse("s", text) == StageOutcome("s", outcome, 1.3, 10)


def test_text_of_something_else_is_no_outcome() -> None:
    with pytest.raises(ValueError, match=r"stage s: expected 'ran in 1\.0 s, 2 bytes' or the like, got 'All"):
        StageOutcome.parse("s", "All states completed.")


def test_the_table_has_a_row_for_each_stage() -> None:
    done = {"a": StageOutcome("a", "ran", 1.26, 12345), "b": StageOutcome("b", "restored", 0.5, 0)}
    table = outcome_table(["a", "b", "c", "d"], {"a": None, "c": "gpu"}, done, ["c"])
    assert table.splitlines()[2:] == [
        "| a |  | ran | 1.3 | 12,345 |",
        "| b |  | restored | 0.5 | 0 |",
        "| c | gpu | **failed** | | |",
        "| d |  | not reached | | |",
    ]
    assert summary(["a", "b", "c"], done.values()) == "3 stages: 1 ran, 1 restored"
    assert summary(["a"], []) == "1 stages: none finished"


@pytest.mark.parametrize(
    ("line", "may_pass"),
    [
        ("ERROR: unexpected error - Forbidden: An error occurred (403)", False),
        ("ERROR: bucket 'x' does not exist", False),
        ("ERROR: Unable to locate credentials", False),
        ("ERROR: unexpected error - Could not connect to the endpoint URL", True),
    ],
)
def test_another_try_is_of_no_use_where_access_is_refused(line: str, may_pass: bool) -> None:
    error = RemoteError("dvc push", 255, ["pushing", line])
    assert error.may_pass is may_pass
    assert line in str(error)
    assert ("credentials of this worker" in str(error)) is not may_pass
