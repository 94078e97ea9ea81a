"""chunk_grpo/orchestration/repeating.py"""

import threading
from contextvars import ContextVar

import pytest

from chunk_grpo.orchestration.repeating import repeating

CALLER: ContextVar[str] = ContextVar("CALLER", default="nobody")


def test_it_is_done_again_and_again_with_the_context_of_the_caller() -> None:
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
def test_it_is_done_at_the_end_and_never_after_it(fails: bool) -> None:
    seen: list[int] = []
    try:
        with repeating(lambda: seen.append(1), 60.0):
            assert seen == []
            if fails:
                raise OSError
    except OSError:
        assert fails
    assert seen == [1]
