"""Figures of several panels: which plots the report has, and how large they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from chunk_grpo.reporting import figures, palette, plots
from chunk_grpo.reporting.content import REWARD_METRICS, Content, Curves
from chunk_grpo.reporting.figures import Draw
from chunk_grpo.reporting.reward_hacking import watched
from chunk_grpo.reporting.series import Curve

WIDE, NARROW = (10.4, 3.2), (5.0, 3.5)
HALF, THIRD = (4.8, 2.9), (3.7, 2.6)
CROWDED_STRETCH = 1.4
"""Height of curves with many variants, relative to others."""
LOW = 1.9
"""Least height in inches of a difference panel."""
MARGINS, ROW = 0.7, 0.17
"""Height in inches of a difference panel: title and axis, and each row."""


@dataclass(frozen=True)
class Figure:
    """Panels of one size: inline SVGs in the page, one PNG for the Markdown."""

    panels: Sequence[tuple[Draw, str]]
    """Drawing and alternative text of each panel."""
    size: tuple[float, float]
    """Width and height of a panel in inches."""
    columns: int
    """Panels of a full row."""
    legend: bool = True
    """Whether the PNG has a legend of the variants."""


def profile_draw(content: Content) -> Draw:
    """The relative L1 profile over the chunks of the plan in use."""
    return partial(plots.draw_profile, sde=content.sde, ode=content.ode, shown=content.shown, guided=content.guided)


def panel_figures(content: Content) -> dict[str, Figure]:
    """Figures of several panels, of the sections that the content has."""
    differences = {"differences": difference_figure(content)} if "answer" in content.sections else {}
    return differences | (curve_figures(content) if "training" in content.sections else {})


def difference_figure(content: Content) -> Figure:
    """Differences from the base: the training reward first, then each scorer; panels grow with their rows."""
    variants = content.settings.compared  # also of an unfinished run, so that colours stay
    panels: list[tuple[Draw, str]] = []
    for measure in content.settings.measures:
        rows = [c for c in content.comparisons if c.measure == measure]
        name = content.settings.label(measure)
        draw = partial(plots.draw_differences, rows=rows, variants=variants, title=f"{name}, difference from the base")
        label = f"Differences from the base model on {name}, with 95 % intervals; the table below has the numbers."
        panels.append((draw, label))
    height = max(LOW, MARGINS + ROW * len(content.scored.drawn))
    return Figure(panels, (HALF[0], height), columns=2, legend=False)


def curve_figures(content: Content) -> dict[str, Figure]:
    """Figures of curves by iteration."""
    settings = content.settings
    training = {
        "max_ratio_distance": "largest |ratio − 1|",
        "clip_fraction": "share of clipped terms",
        "grad_norm": "gradient norm before clipping",
    }
    limits = {"max_ratio_distance": settings.training.clip_range}
    found = {}
    for name, curves, titles, (width, height) in (
        ("curves", content.rewards, REWARD_METRICS, HALF),
        ("training", content.training, training, THIRD),
        ("watched", content.watched, watched(settings.training), THIRD),
    ):
        if curves:
            where = ", held-out images" if name == "watched" else ""
            found[name] = curve_figure(curves, titles, settings.variants, (width, height), limits, where)
    if content.by_work:
        found["work"] = work_figure(content.by_work, settings.variants)
    if content.tradeoffs or content.by_distance:
        found["tradeoff"] = tradeoff_figure(content.tradeoffs, content.by_distance, settings.variants)
    return found


def work_figure(by_work: Curves, variants: Sequence[str]) -> Figure:
    """The held-out training reward by the work done: a panel for each kind of work."""
    panels: list[tuple[Draw, str]] = []
    for work, curves in by_work.items():
        title = f"held-out training reward by {work}"
        draw = partial(plots.draw_curves, curves=curves, variants=variants, title=title, along=work)
        panels.append((draw, f"Line chart of the {title}; one line per variant."))
    return Figure(panels, HALF, 2)


def tradeoff_figure(
    tradeoffs: Mapping[str, Mapping[str, tuple[Curve, Curve]]],
    by_distance: Mapping[str, tuple[Curve, Curve]],
    variants: Sequence[str],
) -> Figure:
    """The reward over the distance from the base, and each scorer outside the reward over the reward."""
    panels: list[tuple[Draw, str]] = []
    if by_distance:
        draw = partial(plots.draw_tradeoff, ways=by_distance, variants=variants, title="training reward")
        label = "Line chart of the training reward over the distance from the base; one line per variant."
        panels.append((partial(draw, along="distance from the base (KL)"), label))
    for scorer, ways in tradeoffs.items():
        draw = partial(plots.draw_tradeoff, ways=ways, variants=variants, title=scorer)
        label = f"Line chart of {scorer} over the training reward; one line per variant, from the base to a dot."
        panels.append((draw, label))
    return Figure(panels, *((HALF, 2) if len(panels) < 3 else (THIRD, 3)))


def curve_figure(
    curves: Curves,
    titles: Mapping[str, str],
    variants: Sequence[str],
    size: tuple[float, float] = HALF,
    limits: Mapping[str, float | None] = MappingProxyType({}),
    where: str = "",
) -> Figure:
    """A panel for each metric, with a line for each variant; taller with many variants."""
    width, height = size
    stretch = CROWDED_STRETCH if palette.is_crowded(variants) else 1.0
    panels: list[tuple[Draw, str]] = []
    for metric, by_variant in curves.items():
        title, limit = titles[metric], limits.get(metric)
        draw = partial(plots.draw_curves, curves=by_variant, variants=variants, title=title, limit=limit)
        panels.append((draw, f"Line chart by iteration{where}: {title}; one line per variant."))
    return Figure(panels, (width, height * stretch), 2 if size == HALF else 3)


def plot_picture(figure: Figure, variants: Sequence[str]) -> bytes:
    """The panels of a figure as one PNG."""
    legend = partial(plots.draw_legend, variants=variants) if figure.legend else None
    draws = [draw for draw, _ in figure.panels]
    return figures.png(draws, figure.size, legend, plots.legend_height(variants), figure.columns)
