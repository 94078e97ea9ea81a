"""Run status: one-line summary and Markdown table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from chunk_grpo.orchestration.outcomes import StageOutcome
from chunk_grpo.orchestration.pipeline import StageSpec
from chunk_grpo.orchestration.workspace import Workspace


@dataclass
class Progress:
    """Status of the stages of a workspace."""

    workspace: Workspace
    """The workspace."""
    stages: Sequence[StageSpec]
    """All stages, in order."""
    done: dict[str, StageOutcome] = field(default_factory=dict)
    """Outcomes of the stages that are up to date."""
    failed: list[str] = field(default_factory=list)
    """Names of the failed stages. Stages in neither `done` nor `failed` were not reached."""
    _taken: set[str] = field(default_factory=set)

    def take_new(self) -> list[str]:
        """Names of the stages that have come up to date since the last call."""
        new = [name for name in self.done if name not in self._taken]
        self._taken.update(new)
        return new

    def markdown(self, missed: Sequence[str], *, is_of_edits: bool = False) -> str:
        """Status page of all stages.

        `missed` are uncommitted changes of the checkout, which the run does not include; `is_of_edits`: its commit
        holds such changes.
        """
        spec = self.workspace.spec
        lines = [
            f"## {self.workspace.settings}",
            f"{summary([self])}, {sum(each.seconds for each in self.done.values()):.0f} s in all.",
            f"Commit `{spec.commit[:12]}`{', uncommitted edits,' if is_of_edits else ''} in `{self.workspace.root}`.",
            "",
            "| stage | work pool | outcome | seconds | bytes |",
            "|---|---|---|---:|---:|",
            *(f"| {stage.name} | {stage.work_pool or ''} | {self._result(stage.name)} |" for stage in self.stages),
        ]
        if missed:
            lines += ["", "**Not part of this run:** uncommitted changes of the checkout.", "```", *missed, "```"]
        return "\n".join(lines)

    def _result(self, name: str) -> str:
        if outcome := self.done.get(name):
            return f"{outcome.outcome} | {outcome.seconds:.1f} | {outcome.size:,}"
        return "**failed** | |" if name in self.failed else "not reached | |"


def summary(progress: Sequence[Progress]) -> str:
    """One line, such as `12 stages: 3 ran, 9 restored`."""
    kinds = [outcome.outcome for each in progress for outcome in each.done.values()]
    counts = [f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds)]
    return f"{sum(len(each.stages) for each in progress)} stages: " + ", ".join(counts or ["none finished"])
