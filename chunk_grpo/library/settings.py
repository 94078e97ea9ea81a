"""Settings from keyword arguments, checked like those of params.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from chunk_grpo.config.load import tuples
from chunk_grpo.config.models import ChunksParams, PlanParams
from chunk_grpo.config.problems import Problem, listed, schema_problems
from chunk_grpo.config.rules import broken_rules
from chunk_grpo.config.variants import VariantParams
from chunk_grpo.errors import ConfigError

METHOD = "method"
"""Name of the only variant, and of its plan."""

Checked = TypeVar("Checked", bound=BaseModel)


@dataclass(frozen=True)
class MethodSettings:
    """A method: a variant of params.yaml, with its chunk plan."""

    variant: VariantParams
    """The variant."""
    chunks: ChunksParams
    """Its plan, named `METHOD`."""

    @property
    def plan(self) -> PlanParams:
        """Settings of the plan."""
        return self.chunks.plans[METHOD]


def method(plan: str | Mapping[str, Any], objective: str = "chunk", **settings: Any) -> MethodSettings:
    """A method of docs/methods.md.

    Args:
        plan: A plan as in `chunks.plans` of params.yaml, such as `{"kind": "guided", "num_chunks": 4}`; a plan without
            settings may be given by its kind, "step" or "single".
        objective: "chunk": one ratio a chunk, Eq. (13), or "step": one ratio a step, Eq. (5).
        **settings: Other settings of a variant (docs/parameters.md, Variants).

    Raises:
        ConfigError: A setting is unknown or wrong; the message lists all of them.
    """
    chosen = {"kind": plan} if isinstance(plan, str) else dict(plan)
    values = {"objective": objective, "plan": METHOD, **settings}
    return MethodSettings(
        checked(VariantParams, values, "method"), checked(ChunksParams, {"plans": {METHOD: chosen}}, "chunks")
    )


def checked(section: type[Checked], values: Mapping[str, Any], name: str) -> Checked:
    """A section of params.yaml from its values.

    Raises:
        ConfigError: A value is unknown, missing or wrong; the message lists all of them.
    """
    given = tuples(values)
    try:
        return section.model_validate(given)
    except ValidationError as error:
        found = schema_problems(error, given, section)
        raise refused(Problem((name, *problem.path), problem.text) for problem in found) from None


def require_rules(**sections: Any) -> None:
    """Check the rules over several sections that are given.

    Raises:
        ConfigError: A rule is broken; the message lists all of them.
    """
    if problems := broken_rules(sections):
        raise refused(problems)


def refused(problems: Any) -> ConfigError:
    """The error that lists problems."""
    return ConfigError(listed("settings", list(problems), "docs/parameters.md describes every key."))
