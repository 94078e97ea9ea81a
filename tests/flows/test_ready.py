"""Order in which a run submits its stages: when their inputs exist, and one at a time in a workspace."""

from collections.abc import Collection
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from chunk_grpo.orchestration.outcomes import StageOutcome
from chunk_grpo.orchestration.pipeline import StageSpec
from chunk_grpo.orchestration.progress import Progress
from flows import _stages

STAGES = (
    StageSpec("prompts", ()),
    StageSpec("profile", ("prompts",)),
    StageSpec("draw@base", ("prompts",)),
    StageSpec("train@a", ("profile",), work_pool="gpu"),
    StageSpec("train@b", ("profile",), work_pool="gpu"),
    StageSpec("draw@a", ("train@a",)),
    StageSpec("draw@b", ("train@b",)),
    StageSpec("report", ("draw@base", "draw@a", "draw@b")),
)


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str]]]:
    """Submitted stages, each with the names of the tasks before it."""
    found: list[tuple[str, list[str]]] = []

    def submit(spec: StageSpec, *_: Any, wait_for: Collection[SimpleNamespace], **__: Any) -> SimpleNamespace:
        found.append((spec.name, [task.name for task in wait_for]))
        return Task(name=spec.name, add_done_callback=lambda _: None)

    monkeypatch.setattr(_stages, "_run", SimpleNamespace(submit=submit))
    return found


class Task(SimpleNamespace):
    """A stand-in for a future: it has a name, and is a key of dicts."""

    __hash__ = object.__hash__  # type: ignore[assignment]


def outcome(name: str) -> StageOutcome:
    return StageOutcome(name, "ran", 1.0, 1)


def tasks(*known: str) -> Any:
    progress = Progress(SimpleNamespace(paused=set()), STAGES)  # type: ignore[arg-type]
    return _stages._Tasks(progress, {name: outcome(name) for name in known}, False, SimpleQueue())


def ended(some: Any, *done: str, failed: str = "") -> list[str]:
    """Stages that are submitted when these have ended."""
    some.progress.done.update({name: outcome(name) for name in done})
    some.progress.failed.extend([failed] if failed else [])
    return [spec.name for _, spec in some.submit_ready().values()]


def test_one_stage_at_a_time_runs_in_the_workspace(submitted: list[tuple[str, list[str]]]) -> None:
    some = tasks()
    assert ended(some) == ["prompts"]
    assert ended(some) == []
    assert ended(some, "prompts") == ["profile"]
    assert ended(some, "profile") == ["draw@base", "train@a", "train@b"]
    assert ended(some, "train@b") == []
    assert ended(some, "draw@base") == ["draw@b"]
    assert ended(some, "train@a") == []
    assert ended(some, "draw@b") == ["draw@a"]
    assert ended(some, "draw@a") == ["report"]
    assert ended(some, "report") == []
    assert dict(submitted)["report"] == ["draw@base", "draw@a", "draw@b"]


@pytest.mark.usefixtures("submitted")
def test_what_does_not_depend_on_a_failed_stage_runs() -> None:
    some = tasks()
    for done in ([], ["prompts"], ["profile"], ["draw@base"]):
        ended(some, *done)
    assert ended(some, failed="train@a") == []
    assert ended(some, "train@b") == ["draw@b"]
    assert ended(some, "draw@b") == []


@pytest.mark.usefixtures("submitted")
def test_a_stage_that_pauses_leaves_the_workspace_to_others() -> None:
    some = tasks("prompts", "profile")
    for done in ([], ["prompts"], ["profile"]):
        ended(some, *done)
    assert ended(some, "train@a") == []
    some.progress.workspace.paused.add("draw@base")
    assert ended(some) == ["draw@a"]


@pytest.mark.usefixtures("submitted")
def test_restored_stages_wait_for_their_inputs_alone() -> None:
    some = tasks("prompts", "profile", "draw@base")
    assert ended(some) == ["prompts"]
    assert ended(some, "prompts") == ["profile", "draw@base"]
