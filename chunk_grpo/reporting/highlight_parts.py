"""Highlights of a run: each function reads its tables and uses the figures, tables and sentences of the report.

Tables are given as paths by plan, variant, policy or (policy, scorer); policies and variants may be missing.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import pyarrow.compute as pc
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from PIL import Image

from chunk_grpo.config import Params
from chunk_grpo.errors import DataError
from chunk_grpo.reporting import gallery, plots, series, tables
from chunk_grpo.reporting.benchmarks import EVAL
from chunk_grpo.reporting.comparisons import FROM_BASE, Comparisons, headline
from chunk_grpo.reporting.content import REWARD_METRICS
from chunk_grpo.reporting.evidence import (
    BASE,
    REWARD,
    ReportSettings,
    ScoreBook,
    ScoredPrompts,
    Source,
)
from chunk_grpo.reporting.figures import png
from chunk_grpo.reporting.gallery import Column, GridRow
from chunk_grpo.reporting.highlight import Highlight, data_uri, escaped, plot_uri
from chunk_grpo.reporting.inputs import read_metrics, read_plan, read_scores, read_source
from chunk_grpo.reporting.page import HALF, MARGINS, ROW
from chunk_grpo.reporting.palette import INK, MUTED, PAPER, SHADE_EVEN, SHADE_ODD
from chunk_grpo.reporting.series import Chunk
from chunk_grpo.reporting.statistics import METHOD

PROFILE = (10.4, 3.3)
"""Width of the page and height of each panel of the profile, in inches."""
FEW = 9
"""Largest number of chunks whose numbers are written into the picture."""
IMAGES_LIMIT = 1_000_000
"""Largest size of the image grids in bytes; base64 adds a third."""
QUALITY = 84
"""JPEG quality."""

Key = TypeVar("Key", str, int, tuple[str, str])


def profile_highlight(settings: ReportSettings, profile: Path, plans: Mapping[str, Path]) -> Highlight:
    """The relative L1 profile, with the chunks of every plan unless `plans` is empty."""
    source = read_source(profile, "l1_profile")
    sde, ode = series.profile_curve(source, "sde"), series.profile_curve(source, "ode")
    chunks, plan = _chunks(plans), settings.shown_plan
    draws = [partial(plots.draw_profile, sde=sde, ode=ode, shown=chunks.get(plan, ()), guided=None)]
    text = (
        "Mean over prompts (Eq. 15); band: 5th to 95th percentile. The SDE is the sampler used in training."
    )
    if chunks:
        draws.append(partial(draw_plans, plans=chunks, last_step=int(max(sde.x[-1], ode.x[-1]))))
        text += f" Shaded: the chunks of {escaped(plan)}; below: the chunks of every plan."
    alt = "Relative L1 distance per step, and the chunks of every plan"
    picture = f"![{alt}]({plot_uri(png(draws, PROFILE, columns=1))})"
    parts = ["## Relative L1 distance between steps", text, picture]
    return Highlight("l1-profile", "L1 profile with chunk boundaries", "\n\n".join(parts))


def chunks_highlight(params: Params, plans: Mapping[str, Path]) -> Highlight:
    """Every plan with its chunks and the variants that train with it."""
    parts = [
        "## Chunks",
        "Steps count from 0, from noise to image. First draw: probability that a draw by weight takes this chunk "
        "first.",
    ]
    for name, chunks in _chunks(plans).items():
        sizes = ", ".join(str(chunk.num_steps) for chunk in chunks)
        users = ", ".join(v for v, variant in params.variants.items() if variant.plan == name)
        parts += [
            f"### {escaped(name)}",
            f"Sizes: {sizes}. Trained by: {escaped(users) or 'no variant'}.",
            tables.to_markdown(tables.chunk_table(chunks)),
        ]
    return Highlight("chunks", "Chunks of every plan", "\n\n".join(parts))


def draw_plans(axes: Axes, plans: Mapping[str, Sequence[Chunk]], last_step: int) -> None:
    """Draw the plans above each other along the steps: one row per plan, one box per chunk."""
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


def rewards_highlight(settings: ReportSettings, metrics: Mapping[str, Mapping[int, Path]]) -> Highlight:
    """Reward by iteration of the variants and seeds that have trained."""
    found = {variant: read_metrics(variant, files) for variant, files in metrics.items()}
    picture = reward_curves(found, settings.variants)
    parts = [
        "## Reward by iteration",
        "Mean over training seeds; with few variants, bands show the lowest and highest seed. "
        "Iteration 0 is the base model." + _missing("trained", settings.variants, metrics),
        f"![Training reward by iteration, one line per variant]({picture})",
    ]
    return Highlight("rewards", "Reward curves", "\n\n".join(parts))


def reward_curves(metrics: Mapping[str, Source], names: Sequence[str]) -> str:
    """Plot of the reward by iteration as a data: URI; empty before the first value.

    `metrics` has schema train_metrics for each line, `names` all lines in order, for the colours.
    """
    curves = {metric: series.optional_curves(metrics, metric) for metric in REWARD_METRICS}
    draws = [
        partial(plots.draw_curves, curves=found, variants=names, title=REWARD_METRICS[metric])
        for metric, found in curves.items()
        if found
    ]
    legend = partial(plots.draw_legend, variants=names)
    return plot_uri(png(draws, HALF, legend, plots.legend_height(names))) if draws else ""


def images_highlight(settings: ReportSettings, prompts: Path, images: Mapping[str, Path]) -> Highlight:
    """Images of base and tuned variants for the same prompts and noise; prompts beyond `IMAGES_LIMIT` are omitted."""
    table = read_source(prompts, "prompts").table
    table = table.filter(pc.equal(table["split"], EVAL))
    ids, categories, captions = (table[name].to_pylist() for name in ("prompt_id", "category", "prompt"))
    held_out = ScoredPrompts(tuple(ids), tuple(categories), tuple(captions))
    chosen = gallery.choose_prompts(held_out, settings.grid_prompts, settings.seed)
    sources = {policy: gallery.first_images(policy, str(file), chosen) for policy, file in images.items()}
    texts, unscored = dict(zip(ids, captions, strict=True)), ScoreBook({}, settings.rewards)
    grids = gallery.grid_variants([variant for variant in settings.variants if variant in images])
    pictures, shown = [], 0
    for variants in grids:
        columns = (Column(BASE, BASE), *(Column(variant, "tuned") for variant in variants))
        rows = gallery.grid_rows(chosen, columns, sources, texts, unscored, ())
        fitting, picture = _fitting(rows, columns, IMAGES_LIMIT // len(grids))
        names = ", ".join([BASE, *(f"{variant} tuned" for variant in variants)])
        pictures.append(f"![Image grid: {names}]({data_uri(picture)})")
        shown = max(shown, len(fitting))
    parts = [
        "## The same prompts and seeds",
        "All images of a row have the same prompt and the same noise (sample 0; tuned policies: training seed "
        f"{min(settings.train_seeds)}). Prompts were drawn without using any score."
        + _missing("drawn", settings.variants, images),
        *pictures,
        "\n".join(f"{n}. {escaped(r.prompt)}, seed {r.seed}" for n, r in enumerate(rows[:shown], start=1)),
    ]
    return Highlight("images", "Images of base and tuned policies", "\n\n".join(parts))


def _fitting(
    rows: Sequence[GridRow], columns: Sequence[Column], limit: int
) -> tuple[Sequence[GridRow], bytes]:
    """The first rows whose picture has at most `limit` bytes, at least one, and their picture."""
    while True:
        picture = gallery.grid_png(rows, columns)
        if not rows[0].pictures[0].pixelated:
            out = io.BytesIO()
            Image.open(io.BytesIO(picture)).save(out, "JPEG", quality=QUALITY)
            picture = out.getvalue()
        if len(picture) <= limit or len(rows) == 1:
            return rows, picture
        rows = rows[: len(rows) // 2]


def scores_highlight(
    settings: ReportSettings, prompts: Path, scores: Mapping[tuple[str, str], Path]
) -> Highlight:
    """The report's comparison with the base, for the variants that are scored by all scorers."""
    scored = tuple(variant for variant in settings.variants if (variant, settings.scorers[0]) in scores)
    uses = {use.name: use for use in settings.measured}
    found = {(p, s): read_scores(p, uses[s], file) for (p, s), file in scores.items()}
    book = ScoreBook(found, settings.rewards)
    source = read_source(prompts, "prompts")
    held_out = book.prompt_set(source, EVAL, settings.scorers[0])
    if held_out is None:
        raise DataError(
            f"{prompts}: no prompt with split={EVAL} was scored for the base; run the generate and score stages again"
        )
    against = Comparisons(book, held_out, replace(settings, variants=scored))
    measures = settings.measures
    of_variants = settings.drawn_of(scored)
    drawn = {m: [against.against_base(v, mode, m) for v, mode in of_variants] for m in measures[:2]}
    answer, sentence = headline([c for c in drawn[REWARD] if c.mode == "tuned"], settings.label(REWARD))
    draws = [
        partial(
            plots.draw_differences,
            rows=rows,
            variants=settings.variants,
            title=f"{settings.label(m)}, {FROM_BASE}",
        )
        for m, rows in drawn.items()
    ]
    picture = plot_uri(png(draws, (HALF[0], max(HALF[1], MARGINS + ROW * len(drawn[REWARD])))))
    parts = [
        f"## {answer}",
        sentence + _missing("scored", settings.variants, scored),
        f"![Differences from the base model with 95 % intervals: {' and '.join(drawn)}]({picture})",
        "Below each mean: the difference from the base and its 95 % interval. Filled dots: tuned; hollow: hybrid.",
    ]
    for table in tables.in_parts(tables.policy_table(against, of_variants, measures, settings.label)):
        # Three short lines per cell keep the table narrow: pages that scroll tables sideways hide the last columns.
        parts.append(tables.to_markdown(table).replace(" (", "<br>("))
    parts.append(METHOD)
    return Highlight("scores", "Scores against the base", "\n\n".join(parts))


def _chunks(plans: Mapping[str, Path]) -> dict[str, tuple[Chunk, ...]]:
    return {plan: series.chunks_of(read_plan(plan, file)) for plan, file in plans.items()}


def _missing(done: str, variants: Sequence[str], there: Collection[str]) -> str:
    """A sentence that names the variants still missing; empty if there are none."""
    left = [variant for variant in variants if variant not in there]
    return f" Not {done} yet: {escaped(', '.join(left))}." if left else ""
