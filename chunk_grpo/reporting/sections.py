"""Sections of the report of an unfinished run, each as soon as its tables exist."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from chunk_grpo.artifacts.layout import PARAMS, Layout
from chunk_grpo.config import load_params
from chunk_grpo.reporting.content import Content
from chunk_grpo.reporting.evidence import BASE, Evidence, ReportSettings
from chunk_grpo.reporting.inputs import read_evidence, settings_from
from chunk_grpo.reporting.markdown import Section, embedded, few_colours, reduced
from chunk_grpo.reporting.page import grid_pictures, plot_pictures, render

_TITLES = {
    "profile": "L1 profile with chunk boundaries",
    "training": "Curves of training",
    "images": "Images of base and tuned policies",
    "answer": "Does it help?",
    "scores": "Scores against the base",
}
_AFTER = {
    "chunk_boundaries": ("profile",),
    "train": ("training",),
    **dict.fromkeys(("generate_base", "generate", "generate_policy"), ("images",)),
    **dict.fromkeys(("score_base", "score", "score_policy"), ("answer", "scores")),
}
"""Stage of dvc.yaml to the sections that show its results."""


def _scores_of(evidence: Evidence, settings: ReportSettings) -> set[str]:
    """Stages that made the scores of the policies that all scorers have scored."""
    scorers = [use.name for use in settings.measured]
    items = [f"{policy}-{scorer}" for policy in evidence.scored for scorer in scorers]
    of_base = {f"score_base@{scorer}" for scorer in scorers} if BASE in evidence.scored else set()
    return of_base | {f"{stage}@{item}" for stage in ("score", "score_policy") for item in items}


def sections_after(stages: Collection[str], root: Path) -> list[Section]:
    """The sections that show results of these stages, as far as the tables of a workspace allow.

    Stages may run meanwhile: they write each table in one step.
    """
    wanted = {section for stage in stages for section in _AFTER.get(stage.partition("@")[0], ())}
    at = Layout.below(root)
    if not wanted or not Path(at.prompts).is_file():  # params.yaml may belong to another pipeline
        return []
    settings = settings_from(load_params(root / PARAMS))
    evidence = read_evidence(at, settings, partial=True)
    if not _scores_of(evidence, settings).intersection(stages):
        wanted -= {"answer", "scores"}  # they are as before, and all images would be read for them
    content = Content(evidence, settings, wanted)
    pictures = {name: few_colours(plot) for name, plot in plot_pictures(content).items()}
    pictures |= {name: reduced(grid) for name, grid in grid_pictures(content).items()}
    return [
        Section(name, title, embedded(render("report.md.j2", content, [name]), pictures))
        for name, title in _TITLES.items()
        if name in content.sections
    ]
