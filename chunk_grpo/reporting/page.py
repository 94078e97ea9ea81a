"""Files of the report: HTML page, Markdown with pictures, summary for `dvc metrics`, CSVs for `dvc plots`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import jinja2

from chunk_grpo.reporting import figures, palette, paper, plots, tables, training_tables
from chunk_grpo.reporting.benchmarks import EVAL
from chunk_grpo.reporting.comparisons import FROM_BASE, NO_BREAK, prompts_text, with_first
from chunk_grpo.reporting.content import REWARD_METRICS, Content, collect
from chunk_grpo.reporting.evidence import MODES, REWARD, Evidence, ReportSettings
from chunk_grpo.reporting.figures import Draw
from chunk_grpo.reporting.gallery import Grid, grid_png
from chunk_grpo.reporting.reward_hacking import watched
from chunk_grpo.reporting.series import Curve, csv_text, curve_rows
from chunk_grpo.reporting.statistics import Interval
from chunk_grpo.reporting.variant_summary import mix_text

WIDE, NARROW = (10.4, 3.7), (5.0, 3.5)
HALF, THIRD = (4.8, 2.9), (3.7, 2.6)
CROWDED_STRETCH = 1.4
MARGINS, ROW = 0.7, 0.17
"""Height in inches of a difference panel: title and axis, and each row."""


@dataclass(frozen=True)
class Panel:
    """A panel of the page.

    Attributes:
        name: Name, unique in the page.
        draw: Draws the panel.
        label: Alternative text.
    """

    name: str
    draw: Draw
    label: str


@dataclass(frozen=True)
class PanelSizes:
    """Width and height in inches of panels that take half or a third of the page, and of the difference panels."""

    half: tuple[float, float]
    third: tuple[float, float]
    differences: tuple[float, float]


def panel_sizes(content: Content) -> PanelSizes:
    """Panel sizes; curves are taller with many variants, and difference panels grow with their rows."""
    stretch = CROWDED_STRETCH if palette.is_crowded(content.settings.variants) else 1.0
    rows = len(content.settings.variants) * len(MODES)
    return PanelSizes(
        half=(HALF[0], HALF[1] * stretch),
        third=(THIRD[0], THIRD[1] * stretch),
        differences=(HALF[0], max(HALF[1], MARGINS + ROW * rows)),
    )


def build_report(evidence: Evidence, settings: ReportSettings) -> dict[str, bytes]:
    """All files of the report by path below its folder; equal inputs give equal bytes.

    Raises:
        DataError: required input is missing; the message names file and key.
    """
    content = collect(evidence, settings)
    differences, rewards = difference_panels(content), reward_panels(content)
    training, watching = training_panels(content), watched_panels(content)
    profile, sizes = profile_draw(content), panel_sizes(content)
    strip = plots.legend_height(settings.variants)
    legend = partial(plots.draw_legend, variants=settings.variants)
    pictures = {
        "differences.png": figures.png([p.draw for p in differences[:2]], sizes.differences),
        **grid_pictures(content),
        "profile.png": figures.png([profile], WIDE),
        "curves.png": figures.png([p.draw for p in rewards], sizes.half, legend, strip),
        "training.png": figures.png([p.draw for p in training], sizes.third, legend, strip),
    }
    if watching:
        draws = [p.draw for p in watching]
        pictures["watched.png"] = figures.png(draws, sizes.third, legend, strip, columns=min(3, len(draws)))
    svgs = {
        "differences": _svgs(differences, sizes.differences),
        "rewards": _svgs(rewards, sizes.half),
        "training": _svgs(training, sizes.third),
        "watched": _svgs(watching, sizes.third),
        "profile_wide": figures.svg(profile, "profile-wide", PROFILE_LABEL, WIDE),
        "profile_narrow": figures.svg(profile, "profile-narrow", PROFILE_LABEL, NARROW),
    }
    texts = {
        "index.html": render("index.html.j2", content, svgs),
        "report.md": render("report.md.j2", content, {}),
        "summary.json": json.dumps(summary(content), indent=2, allow_nan=False, ensure_ascii=False) + "\n",
        **plot_files(content),
    }
    return pictures | {name: text.encode() for name, text in texts.items()}


PROFILE_LABEL = (
    "Line chart of the relative L1 distance between consecutive steps, for the SDE and the ODE sampler, over "
    "the shaded chunks of the plan in use."
)


def render(template: str, content: Content, svgs: Mapping[str, object]) -> str:
    """Render one of the templates in templates/."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("chunk_grpo.reporting"),
        autoescape=jinja2.select_autoescape(["html.j2"], default=False),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals["chip_class"] = partial(_chip_class, content.settings.variants)
    environment.filters["markdown"] = tables.to_markdown
    environment.filters["in_parts"] = tables.in_parts
    environment.filters["paper"] = tables.paper_table
    environment.filters["duration"] = _duration
    environment.filters["prompts_text"] = prompts_text
    environment.filters["pairs"] = tables.pairs_table
    environment.filters["with_first"] = with_first
    variants = content.settings.variants
    return environment.get_template(template).render(
        c=content,
        s=content.settings,
        svgs=svgs,
        paper=paper,
        colours={v: f"var(--variant-{palette.variant_index(variants, v)})" for v in variants},
        light=palette.VARIANT_COLOURS,
        dark=palette.VARIANT_COLOURS_DARK,
        dashes=[palette.dash_gradient(dash, 0.22) for dash in palette.DASHES[1:]],
        crowded=palette.is_crowded(variants),
        grids=named_grids(content),
        how=training_story(content),
        others_by_category=any(table.split != EVAL for table in content.categories),
        reward=mix_text(content.settings.rewards),
    )


def grid_pictures(content: Content) -> dict[str, bytes]:
    """PNG files of the image grid for the Markdown, one per part."""
    return {name: grid_png(grid.rows, grid.columns) for name, grid in named_grids(content)}


def named_grids(content: Content) -> list[tuple[str, Grid]]:
    """File name and content of each part of the image grid."""
    return [
        ("grid.png" if number == 1 else f"grid-{number}.png", grid)
        for number, grid in enumerate(content.grids, start=1)
    ]


def training_story(content: Content) -> dict[str, tables.Table | None]:
    """Tables about training; None for those that the artifacts have no data for."""
    return {
        "trained": training_tables.trained_table(content.story.trained),
        "draws": training_tables.draws_table(content.story.uses),
        "clipping": training_tables.clipping_table(content.story.uses),
        "plans": training_tables.plan_table(content.story.moments),
        "endings": training_tables.endings_table(content.story.endings, content.settings.training),
    }


def profile_draw(content: Content) -> Draw:
    """Drawing of the profile with its chunks."""
    p = content.profile
    return partial(plots.draw_profile, sde=p.sde, ode=p.ode, shown=p.shown, guided=p.guided)


def difference_panels(content: Content) -> list[Panel]:
    """Panels of the differences from the base: the training reward first, then each scorer."""
    variants = content.settings.variants
    panels = []
    for index, measure in enumerate((REWARD, *content.settings.scorers)):
        rows = [c for c in content.comparisons if c.measure == measure]
        draw = partial(plots.draw_differences, rows=rows, variants=variants, title=f"{measure}, {FROM_BASE}")
        label = f"Differences from the base model on {measure}, with 95 % intervals; the table below has the numbers."
        panels.append(Panel(f"difference-{index}", draw, label))
    return panels


def reward_panels(content: Content) -> list[Panel]:
    """Panels of the reward by iteration."""
    variants = content.settings.variants
    return [
        Panel(
            metric,
            partial(plots.draw_curves, curves=content.rewards[metric], variants=variants, title=title),
            f"Line chart by iteration: {title}; one line per variant.",
        )
        for metric, title in REWARD_METRICS.items()
    ]


def training_panels(content: Content) -> list[Panel]:
    """Panels of ratios, clipping and gradient norm by iteration."""
    variants, clip = content.settings.variants, content.settings.training.clip_range
    wanted = (
        ("max_ratio_distance", "largest |ratio − 1|", clip),
        ("clip_fraction", "share of clipped terms", None),
        ("grad_norm", "gradient norm before clipping", None),
    )
    return [
        Panel(
            name,
            partial(
                plots.draw_curves, curves=content.training[name], variants=variants, title=title, limit=limit
            ),
            f"Line chart by iteration: {title}; one line per variant.",
        )
        for name, title, limit in wanted
    ]


def watched_panels(content: Content) -> list[Panel]:
    """Panels of held-out images by iteration: scorers that are not part of the reward, and image statistics."""
    variants, titles = content.settings.variants, watched(content.settings.training)
    return [
        Panel(
            f"watched-{index}",
            partial(plots.draw_curves, curves=curves, variants=variants, title=titles[metric]),
            f"Line chart by iteration, held-out images: {titles[metric]}; one line per variant.",
        )
        for index, (metric, curves) in enumerate(content.story.watched.items())
    ]


def summary(content: Content) -> dict[str, object]:
    """Nested numbers for `dvc metrics`: base means, then variant, mode, measure."""
    reach = content.comparisons[0].difference
    found: dict[str, object] = {
        "prompts": reach.num_prompts,
        "captions": reach.num_captions,
        "train_seeds": reach.num_seeds,
        "base": {_key(m): _rounded(interval.mean) for m, interval in content.base.items()},
    }
    for variant in content.settings.variants:
        modes: dict[str, dict[str, object]] = {mode: {} for mode in MODES}
        for c in content.comparisons:
            if c.variant == variant:
                modes[c.mode][_key(c.measure)] = {"mean": _rounded(c.mean), **_interval(c.difference)}
        for found_table in content.categories:
            of_split = "" if found_table.split == EVAL else f"_{found_table.split}"
            for mode in MODES:
                interval = found_table.overall[variant, mode]
                mean = "overall" if found_table.is_overall else "mean"
                modes[mode][f"{found_table.scorer}{of_split}_{mean}"] = _interval(interval)
        found[variant] = modes
    return found


def plot_files(content: Content) -> dict[str, str]:
    """CSV files below plots/."""
    band = ("mean", "low", "high")
    profile = content.profile
    levels = profile.noise_levels
    l1 = [
        (sampler, row[1], levels[int(curve.x[i])], *row[2:])
        for sampler, curve in (("sde", profile.sde), ("ode", profile.ode))
        for i, row in enumerate(curve_rows((sampler,), curve))
    ]
    by_iteration = ("variant", "metric", "iteration", *band)
    return {
        "plots/l1_profile.csv": csv_text(("sampler", "step", "t", *band), l1),
        "plots/reward_curves.csv": csv_text(by_iteration, _rows(content.rewards)),
        "plots/training.csv": csv_text(by_iteration, _rows(content.training)),
        "plots/watched.csv": csv_text(by_iteration, _rows(content.story.watched)),
        "plots/how_trained.csv": csv_text(
            training_tables.TRAINED_HEADER, training_tables.flat_trained(content.story.trained)
        ),
        "plots/chunk_draws.csv": csv_text(
            ("variant", "chunk", "draws", "share", "clip_fraction"),
            training_tables.flat_uses(content.story.uses),
        ),
        "plots/pairs.csv": csv_text(
            ("first", "second", "difference", "low", "high"), tables.flat_pairs(content.pairs)
        ),
        "plots/differences.csv": csv_text(
            ("variant", "mode", "measure", "mean", "difference", "low", "high"),
            tables.flat_differences(content.comparisons),
        ),
    }


def _rows(curves: dict[str, dict[str, Curve]]) -> list[tuple[object, ...]]:
    return [
        row
        for metric, by_variant in curves.items()
        for variant, curve in by_variant.items()
        for row in curve_rows((variant, metric), curve)
    ]


def _svgs(panels: Sequence[Panel], size: tuple[float, float]) -> list[str]:
    return [figures.svg(panel.draw, panel.name, panel.label, size) for panel in panels]


def _chip_class(variants: Sequence[str], variant: str) -> str:
    """CSS class of a variant's mark: a coloured square, or a piece of its line if colours repeat."""
    if not palette.is_crowded(variants):
        return "chip"
    return f"chip line dash-{palette.variant_dash(variants, variant)}"


def _duration(seconds: float) -> str:
    """A duration that no line break can split."""
    return tables.duration(seconds).replace(" ", NO_BREAK)


def _key(measure: str) -> str:
    return measure.replace(" ", "_")


def _interval(interval: Interval) -> dict[str, object]:
    return {
        "difference": _rounded(interval.mean),
        "low": _rounded(interval.low),
        "high": _rounded(interval.high),
    }


def _rounded(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 6)
