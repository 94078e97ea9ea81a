"""Files of the report: HTML page, Markdown with pictures, summary for `dvc metrics`, CSVs for `dvc plots`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from functools import partial
from types import MappingProxyType

import jinja2

from chunk_grpo.progress import duration
from chunk_grpo.reporting import figures, palette, paper, tables
from chunk_grpo.reporting.benchmarks import EVAL
from chunk_grpo.reporting.comparisons import NO_BREAK, SEEN, prompts_text
from chunk_grpo.reporting.content import SECTIONS, Content, Curves, lines_text, reward_curves_text
from chunk_grpo.reporting.evidence import BASE, REWARD, Drawn, Evidence, ReportSettings
from chunk_grpo.reporting.flips import Flips
from chunk_grpo.reporting.gallery import VISIBLE, grid_png
from chunk_grpo.reporting.markdown import escaped
from chunk_grpo.reporting.panels import NARROW, WIDE, Figure, panel_figures, plot_picture, profile_draw
from chunk_grpo.reporting.sentences import with_first
from chunk_grpo.reporting.series import csv_text, curve_rows
from chunk_grpo.reporting.statistics import Interval
from chunk_grpo.reporting.trained import ChunkUse, StepUse, Trained
from chunk_grpo.reporting.variant_summary import mix_text

WIDER = {(2, 1): 2.11, (3, 2): 1.58, (3, 1): 3.33}
"""Width of a panel relative to others, by the panels of full rows and of its row: with the gaps and frames of the page,
1051, 499 and 315 CSS pixels for 1, 2 and 3 panels of a row."""
PROFILE_LABEL = (
    "Line chart of the relative L1 distance between consecutive steps, for the SDE and the ODE sampler, over "
    "the shaded chunks of the plan in use."
)


@dataclass(frozen=True)
class Card:
    """A panel of the page."""

    of_row: int
    """Number of panels in its row."""
    svg: str
    """The drawing as wide as its place in the row."""
    narrow: str = ""
    """Drawing for a narrow page, where each panel has its own row; empty: the same."""


def _cards(name: str, figure: Figure) -> list[Card]:
    """The panels of a figure. In a row with fewer panels each is wider, so that all letters have one size."""
    width, height = figure.size
    most = figure.columns
    of_rows = [size for size in figures.row_sizes(len(figure.panels), most) for _ in range(size)]
    found = []
    for index, (of_row, (draw, label)) in enumerate(zip(of_rows, figure.panels, strict=True)):
        svg = figures.svg(draw, f"{name}-{index}", label, figure.size)
        if of_row == most:
            found.append(Card(of_row, svg))
            continue
        wide = figures.svg(draw, f"{name}-{index}-wide", label, (width * WIDER[most, of_row], height))
        found.append(Card(of_row, wide, svg))
    return found


def build_report(evidence: Evidence, settings: ReportSettings) -> dict[str, bytes]:
    """All files of the report of a finished run by path below its folder; equal inputs give equal bytes.

    Missing input is a DataError that names file and key.
    """
    content = Content(evidence, settings)
    profile = profile_draw(content)
    profiles = [
        figures.svg(profile, f"profile-{name}", PROFILE_LABEL, size)
        for name, size in (("wide", WIDE), ("narrow", NARROW))
    ]
    svgs = {"profile": [Card(1, *profiles)]}
    for name, figure in panel_figures(content).items():
        svgs[name] = _cards(name, figure)
    texts = {
        "index.html": render("index.html.j2", content, SECTIONS, svgs),
        "report.md": render("report.md.j2", content, SECTIONS),
        "summary.json": _json(summary(content)),
        "metrics.json": _json(metrics(content)),
        **plot_files(content),
    }
    pictures = {**plot_pictures(content), **grid_pictures(content)}
    return pictures | {name: text.encode() for name, text in texts.items()}


def render(
    template: str,
    content: Content,
    sections: Collection[str],
    svgs: Mapping[str, Sequence[Card]] = MappingProxyType({}),
) -> str:
    """Render one of the templates in templates/; both print sections.j2, with the blocks of their format."""
    is_page, variants = template.endswith(".html.j2"), content.settings.compared
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("chunk_grpo.reporting"),
        autoescape=is_page,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "markdown": tables.to_markdown,
        "escaped": escaped,
        "fence": lambda text: "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0)),
        "in_parts": tables.in_parts,
        "duration": lambda seconds: duration(seconds).replace(" ", NO_BREAK),
        "prompts_text": prompts_text,
        "pairs": partial(tables.pairs_table, label=content.settings.label),
        "with_first": lambda pairs: {measure: with_first(found) for measure, found in pairs.items()},
    }
    environment.globals |= {
        "c": content,
        "s": content.settings,
        "sections": sections,
        "is_whole": sections == SECTIONS,
        "svgs": svgs,
        "is_page": is_page,
        "paper": paper,
        # A variant's mark is a coloured square, or a piece of its line if colours repeat.
        "chip_class": lambda v: (
            f"chip line dash-{palette.variant_dash(variants, v)}" if palette.is_crowded(variants) else "chip"
        ),
        "colours": {v: f"var(--variant-{palette.variant_index(variants, v)})" for v in variants},
        "light": palette.VARIANT_COLOURS,
        "dark": palette.VARIANT_COLOURS_DARK,
        "dashes": [palette.dash_gradient(dash, 0.22) for dash in palette.DASHES[1:]],
        "crowded": palette.is_crowded(variants),
        "visible": VISIBLE,
        "seen": SEEN,
        "training_curves": reward_curves_text(content.settings),
        "lines": lines_text(content.settings),
        "reward": mix_text(content.settings.rewards),
    }
    text = environment.get_template(template).render()
    return text if is_page else re.sub(r"\n\s*\n", "\n\n", text).lstrip()


def plot_pictures(content: Content) -> dict[str, bytes]:
    """PNG files of the plots for the Markdown, of the sections that the content has."""
    found = {"profile.png": figures.png([profile_draw(content)], WIDE)} if "profile" in content.sections else {}
    for name, figure in panel_figures(content).items():
        found[f"{name}.png"] = plot_picture(figure, content.settings.variants)
    return found


def grid_pictures(content: Content) -> dict[str, bytes]:
    """PNG files for the Markdown, of the sections that the content has.

    Each part of the image grid, its prompts without visible change, and the flips.
    """
    grids = content.grids if "images" in content.sections else []
    parts = {grid.name: (grid, grid.first) for grid in grids}
    parts |= {f"{grid.name}-more": (grid, grid.more) for grid in grids}
    parts |= {f"{grid.name}-unchanged": (grid, grid.unchanged) for grid in grids}
    found = {f"{name}.png": grid_png(rows, grid.columns) for name, (grid, rows) in parts.items() if rows}
    if "answer" in content.sections and content.flips is not None:
        columns = (Drawn(BASE, BASE), Drawn(content.flips.variant, "tuned"))
        for name, shown in (("won", content.flips.won_rows), ("lost", content.flips.lost_rows)):
            found |= {f"{name}.png": grid_png([flip.row for flip in shown], columns)} if shown else {}
    return found


def metrics(content: Content) -> dict[str, object]:
    """The training reward on held-out prompts, for `dvc metrics` and `dvc exp show`: base, then policy and mode.

    One number a policy, so that the table of experiments fits a screen.
    """
    found: dict[str, object] = {"base": _rounded(content.base[REWARD].mean)}
    for variant in content.settings.compared:
        chosen = [c for c in content.comparisons if (c.variant, c.measure) == (variant, REWARD)]
        found[variant] = {c.mode: _rounded(c.mean) for c in chosen}
    return found


def _json(content: Mapping[str, object]) -> str:
    return json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def summary(content: Content) -> dict[str, object]:
    """For programs: the answer, base means, then policy, mode, measure."""
    reach = content.comparisons[0].difference
    found: dict[str, object] = {
        "prompts": reach.num_prompts,
        "captions": reach.num_captions,
        "train_seeds": reach.num_seeds,
        "answer": {
            "text": content.answer,
            "measure": content.settings.label(REWARD),
            "flips": _flips(content.flips),
            "caution": content.caution,
        },
        "base": {_key(m): _rounded(interval.mean) for m, interval in content.base.items()},
    }
    for variant in content.settings.compared:
        drawn = content.settings.drawn_of([variant])
        modes: dict[str, dict[str, object]] = {mode: {} for _, mode in drawn}
        for c in content.comparisons:
            if c.variant == variant:
                modes[c.mode][_key(c.measure)] = {
                    "mean": _rounded(c.mean),
                    **_interval(c.difference),
                    "size": None if math.isinf(c.size) else _rounded(c.size),
                }
        for table in content.categories:
            split = "" if table.judged.split == EVAL else f"_{table.judged.split}"
            key = f"{table.judged.use.name}{split}_{'overall' if table.is_overall else 'mean'}"
            for one in drawn:
                modes[one[1]][key] = _interval(table.overall[one])
        found[variant] = modes
    return found


def _flips(flips: Flips | None) -> dict[str, object] | None:
    if flips is None:
        return None
    return {
        "scorer": flips.scorer,
        "variant": flips.variant,
        "prompts": flips.total,
        "became_right": flips.won,
        "became_wrong": flips.lost,
    }


def plot_files(content: Content) -> dict[str, str]:
    """CSV files below plots/."""
    band, ends = ("mean", "low", "high"), ("difference", "low", "high")
    levels = content.noise_levels
    l1 = [
        (sampler, row[1], levels[int(curve.x[i])], *row[2:])
        for sampler, curve in (("sde", content.sde), ("ode", content.ode))
        for i, row in enumerate(curve_rows((sampler,), curve))
    ]

    def by_iteration(curves: Curves) -> str:
        rows = (
            row
            for metric, by_variant in curves.items()
            for variant, curve in by_variant.items()
            for row in curve_rows((variant, metric), curve)
        )
        return csv_text(("variant", "metric", "iteration", *band), rows)

    def by_variant(kind: type[ChunkUse] | type[StepUse], uses: Mapping[str, Sequence[ChunkUse | StepUse]]) -> str:
        rows = ((variant, *astuple(use)) for variant, found in uses.items() for use in found)
        return csv_text(("variant", *(f.name for f in fields(kind))), rows)

    return {
        "plots/l1_profile.csv": csv_text(("sampler", "step", "t", *band), l1),
        "plots/reward_curves.csv": by_iteration(content.rewards),
        "plots/training.csv": by_iteration(content.training),
        "plots/watched.csv": by_iteration(content.watched),
        "plots/how_trained.csv": csv_text([f.name for f in fields(Trained)], map(astuple, content.trained)),
        "plots/chunk_draws.csv": by_variant(ChunkUse, content.uses),
        "plots/step_clipping.csv": by_variant(StepUse, content.steps),
        "plots/pairs.csv": csv_text(
            ("measure", "first", "second", *ends, "p_value"),
            (
                (p.measure, p.first, p.second, *_ends(p.difference), p.p_value)
                for pairs in content.pairs.values()
                for p in pairs
            ),
        ),
        "plots/differences.csv": csv_text(
            ("variant", "mode", "measure", "mean", *ends),
            ((c.variant, c.mode, c.measure, c.mean, *_ends(c.difference)) for c in content.comparisons),
        ),
    }


def _ends(interval: Interval) -> tuple[float, float, float]:
    return interval.mean, interval.low, interval.high


def _key(measure: str) -> str:
    return measure.replace(" ", "_")


def _interval(interval: Interval) -> dict[str, object]:
    return dict(zip(("difference", "low", "high"), map(_rounded, _ends(interval)), strict=True))


def _rounded(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 6)
