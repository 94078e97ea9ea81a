"""Highlights of a run: the L1 profile with the boundaries of all plans, and a table of chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from chunk_grpo.config import Params
from chunk_grpo.reporting import plots, series, tables
from chunk_grpo.reporting.comparisons import number
from chunk_grpo.reporting.evidence import Source
from chunk_grpo.reporting.figures import png
from chunk_grpo.reporting.highlight import Highlight, escaped, smaller
from chunk_grpo.reporting.inputs import settings_from
from chunk_grpo.reporting.palette import INK, MUTED, PAPER, SHADE_EVEN, SHADE_ODD
from chunk_grpo.reporting.series import Chunk
from chunk_grpo.reporting.tables import Cell, Row, Table

PANEL = (10.4, 3.3)
"""Width of the page and height of each of the two panels, in inches."""

SHORT = 32
"""Largest number of steps for which the means are also shown in a table."""

FEW = 9
"""Largest number of chunks for which their numbers and sizes are written out."""


def profile_highlight(params: Params, profile: Source, plans: Mapping[str, Source]) -> Highlight:
    """The relative L1 profile, with the plans if they exist.

    Args:
        params: Parameters of the run.
        profile: Schema l1_profile.
        plans: Plan name to schema chunk_plan; empty until the chunk_boundaries stage has run.

    Raises:
        DataError: A sampler is missing from the profile.
    """
    sde, ode = series.profile_curve(profile, "sde"), series.profile_curve(profile, "ode")
    chunks = {name: series.chunks_of(source) for name, source in plans.items()}
    shown = settings_from(params).shown_plan
    draws = [partial(plots.draw_profile, sde=sde, ode=ode, shown=chunks.get(shown, ()), guided=None)]
    lines = [
        "## Relative L1 distance between steps",
        "",
        "Mean over prompts (Eq. 15); band: 5th to 95th percentile. The SDE is the sampler used in training."
        + (f" Shaded: the chunks of {escaped(shown)}; below: the chunks of every plan." if chunks else ""),
        "",
        "![Relative L1 distance per step, and the chunks of every plan](l1-profile.png)",
    ]
    if chunks:
        draws.append(partial(draw_plans, plans=chunks, last_step=int(max(sde.x[-1], ode.x[-1]))))
    if len(sde.x) <= SHORT:
        lines += ["", tables.to_markdown(_means(profile, sde, ode))]
    picture = smaller(png(draws, PANEL, columns=1))
    return Highlight(
        "l1-profile", "L1 profile with chunk boundaries", "\n".join(lines), {"l1-profile.png": picture}
    )


def chunks_highlight(params: Params, plans: Mapping[str, Source]) -> Highlight:
    """Every plan with the variants that train with it and its chunks.

    Args:
        params: Parameters of the run.
        plans: Plan name to schema chunk_plan.
    """
    users = {name: [v for v, variant in params.variants.items() if variant.plan == name] for name in plans}
    chunks = {name: series.chunks_of(source) for name, source in plans.items()}
    summary = Table(
        ("plan", "chunks", "sizes", "trained by"),
        tuple(
            Row(name, (Cell(str(len(of))), Cell(sizes_text(of)), Cell(", ".join(users[name]) or "–")))
            for name, of in chunks.items()
        ),
    )
    parts = [tables.chunk_table(of) for of in chunks.values()]
    rows = [
        Row(name, (Cell(row.head), *row.cells))
        for name, part in zip(chunks, parts, strict=True)
        for row in part.rows
    ]
    lines = [
        "## Chunks",
        "",
        "Steps count from 0, from noise to image. First draw: probability that a draw by weight takes this chunk "
        "first.",
        "",
        tables.to_markdown(summary),
        "",
        tables.to_markdown(Table(("plan", *parts[0].columns), tuple(rows))),
    ]
    return Highlight("chunks", "Chunks of every plan", "\n".join(lines))


def draw_plans(axes: Axes, plans: Mapping[str, Sequence[Chunk]], last_step: int) -> None:
    """Draw the plans above each other along the steps: one row per plan, one box per chunk.

    Args:
        axes: Axes to draw into.
        plans: Plan name to chunks.
        last_step: Last step of the profile, which sets the end of the axis.
    """
    for place, chunks in enumerate(plans.values()):
        for index, chunk in enumerate(chunks):
            left = chunk.first_step - 0.5
            colour = SHADE_EVEN if index % 2 else SHADE_ODD
            axes.barh(
                place, chunk.num_steps, left=left, height=0.7, color=colour, edgecolor=MUTED, linewidth=0.8
            )
            if len(chunks) <= FEW:
                middle = left + chunk.num_steps / 2
                axes.text(middle, place, f"{index}", ha="center", va="center", color=INK, fontsize=8)
    axes.set_yticks(range(len(plans)), list(plans))
    axes.tick_params(axis="y", labelcolor=INK)
    axes.set_ylim(len(plans) - 0.4, -0.6)
    axes.set_xlim(-0.5, last_step + 1.2)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(visible=False)
    axes.set_facecolor(PAPER)
    axes.set_xlabel("step, from noise to image")
    axes.set_title("chunks of every plan")


def sizes_text(chunks: Sequence[Chunk]) -> str:
    """Sizes of a plan, from noise to image; only their range if there are many chunks."""
    sizes = [chunk.num_steps for chunk in chunks]
    if len(sizes) > FEW:
        least, most = min(sizes), max(sizes)
        return f"{least} each" if least == most else f"{least} to {most}"
    return ", ".join(str(size) for size in sizes)


def _means(profile: Source, sde: series.Curve, ode: series.Curve) -> Table:
    """Table of the two curves."""
    levels = series.noise_levels(profile)
    other = dict(zip(ode.x.tolist(), ode.mean.tolist(), strict=True))
    rows = tuple(
        Row(str(step), (Cell(number(levels[step])), Cell(number(mean)), Cell(number(other[step]))))
        for step, mean in zip(sde.x.tolist(), sde.mean.tolist(), strict=True)
    )
    return Table(("step", "t", "SDE", "ODE"), rows)
