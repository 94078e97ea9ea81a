"""Names of flow runs, from their parameters."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import count

from prefect.runtime import flow_run, task_run

from chunk_grpo.orchestration.workspace import Workspace
from chunk_grpo.reporting.markdown import slug

_SHOWN = 2  # overrides in a name
_LONGEST = 24  # characters of an override


def name_of_full() -> str:
    """Name of a run of `full`: `tiny learning_rate=3e-4 1a2b`."""
    return _name([flow_run.parameters.get("preset") or "params.yaml"])


def name_of_ablations() -> str:
    """Name of a run of `ablations`: `ablations tiny tiny-paper 1a2b`."""
    return _name(["ablations", *flow_run.parameters["presets"]])


def name_of_reevaluate() -> str:
    """Name of a run of `reevaluate`: `reevaluate tiny 1a2b`."""
    return _name(["reevaluate", flow_run.parameters["preset"]])


def run_name(words: Sequence[str], overrides: Sequence[str], run_id: str) -> str:
    """Words, the first overrides without their sections, and the last characters of the run's id."""
    shown = [_short(each) for each in overrides[:_SHOWN]]
    more = [f"+{len(overrides) - _SHOWN}"] if len(overrides) > _SHOWN else []
    return " ".join([*words, *shown, *more, run_id[-4:]])


def labels(presets: Sequence[str], settings: Sequence[Sequence[str]]) -> list[str]:
    """Distinct names for the workspaces of a run: the preset, and those overrides that not all of them have."""
    shared = set(settings[0]).intersection(*settings[1:])
    found: list[str] = []
    for preset, overrides in zip(presets, settings, strict=True):
        name = " ".join([preset, *(_short(one) for one in overrides if one not in shared)])
        taken = [slug(other) for other in found]
        number = next(n for n in count(1) if slug(_numbered(name, n)) not in taken)
        found.append(_numbered(name, number))
    return found


def name_of_task() -> str:
    """Name of the task of a stage: that of the stage, and what sets its workspace apart from others of the preset."""
    given = task_run.parameters
    return stage_name(given["spec"].name, given["workspace"])


def stage_name(stage: str, workspace: Workspace) -> str:
    """`train@chunk-ws-0`, or `train@chunk-ws-0, tiny learning_rate=3e-4`."""
    return stage if workspace.label == workspace.preset else f"{stage}, {workspace.label}"


def _numbered(name: str, number: int) -> str:
    return name if number == 1 else f"{name} {number}"


def _name(words: Sequence[str]) -> str:
    return run_name(words, flow_run.parameters["overrides"], str(flow_run.id))


def _short(override: str) -> str:
    """`learning_rate=3e-4` of `train.learning_rate=3e-4`, `~dance` of `~variants.dance`; without spaces."""
    key, equals, value = override.partition("=")
    sign = "~" if key.startswith("~") else ""
    text = re.sub(r"\s+", "", f"{sign}{key.lstrip('~+').rpartition('.')[2]}{equals}{value}")
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
