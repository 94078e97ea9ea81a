"""chunk_grpo/orchestration/repeating.py"""

import threading
from contextvars import ContextVar

import pytest

from chunk_grpo.orchestration.repeating import repeating

CALLER: ContextVar[str] = ContextVar("CALLER", default="nobody")


def test_action_repeats_in_callers_context() -> None:
    seen, enough = list[str](), threading.Event()

    def action() -> None:
        seen.append(CALLER.get())
        if len(seen) == 3:
            enough.set()

    CALLER.set("test")
    with repeating(action, 0.01):
        assert enough.wait(10)
    assert set(seen) == {"test"}


@pytest.mark.parametrize("fails", [False, True])
def test_action_runs_once_more_at_exit(fails: bool) -> None:
    seen: list[int] = []
    try:
        with repeating(lambda: seen.append(1), 60.0):
            assert seen == []
            if fails:
                raise OSError
    except OSError:
        assert fails
    assert seen == [1]
