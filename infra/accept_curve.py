"""The step `curve` of `chunk-grpo accept`: a whole training of a preset beside a published learning curve."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from chunk_grpo.artifacts import write_bytes
from chunk_grpo.orchestration.presets import edits, overridden
from chunk_grpo.planning.plan import make_plan
from chunk_grpo.reporting import figures
from chunk_grpo.reporting.palette import MUTED
from chunk_grpo.reporting.plots import BAND_ALPHA, draw_curves
from chunk_grpo.reporting.series import Curve
from infra.accept_trial import Found, Trial, by_iteration

PICTURE = "curve.png"
SIZE = (6.4, 3.6)
"""Inches of the picture."""
ROWS = 40
"""Most points of the curve on the page."""


@dataclass(frozen=True)
class Band:
    """A published learning curve: means of a metric at its two ends. How wide the ranges are is our choice."""

    variant: str
    metric: str
    """Of train_metrics/1."""
    first: int
    """Values that the mean at the start takes."""
    last: int
    """Values that the mean at the end takes."""
    start: tuple[float, float]
    """Least and largest mean at the start: with other weights, prompts or scorers it is elsewhere."""
    end: tuple[float, float]
    """Least and largest mean at the end."""
    source: str


BANDS: dict[str, Band] = {
    "sd35-medium-text": Band(
        variant="flow-grpo",
        metric="reward/ocr",
        first=10,
        last=100,
        start=(0.2, 0.5),
        end=(0.7, 1.0),
        source="radixark/miles_diffusion, pull request 241: 0.34 to 0.80, the mean of the last 100 of 600; one run",
    ),
    "tiny": Band(
        variant="nft",
        metric="heldout_reward",
        first=1,
        last=1,
        start=(0.41, 0.47),
        end=(0.53, 0.68),
        source="docs/results.md: 0.438 to 0.601, mean of three seeds",
    ),
}
"""By preset."""


def curve(trial: Trial) -> Found:
    """Train the preset whole, with one variant and seed, and compare its learning curve with a published one."""
    band = BANDS.get(trial.params.composed_from)
    if band is None or band.variant not in trial.params.variants:
        return Found("not checked", f"No published curve of it is known here; there is one of {', '.join(BANDS)}.")
    own = whole(trial, band)
    if not trial.wants_curve:
        hours = make_plan(own.small, trial.machine).total.hours[1]
        return Found("not checked", f"With --curve {band.variant} is trained whole, at most {hours:.1f} h by the plan.")
    said = f"curve: trains {band.variant} in {own.out / own.folder}. log.txt has its lines."
    sys.stdout.write(f"{said} If you stop it, the next call goes on with it.\n")
    sys.stdout.flush()
    own.pipeline.run_due([f"train@{own.variant}-{own.seed}"], own.say)
    rows = by_iteration(own.at.metrics(own.variant, own.seed))
    points = {number: values[band.metric] for number, values in sorted(rows.items()) if band.metric in values}
    write_bytes(picture(points, band), str(trial.out / PICTURE))
    return compared(points, band, [str(edit) for edit in edits(trial.root, trial.full)])


def whole(trial: Trial, band: Band) -> Trial:
    """The preset as it is, with one variant and seed, in a workspace of this commit, which a later call uses again."""
    changes = [f"train.seeds=[{trial.params.train.seeds[0]}]"]
    raw = overridden(trial.full, changes, [band.variant], trial.params.composed_from)
    return replace(trial, raw=raw, folder=f"curve-{trial.commit[:12]}")


def compared(points: Mapping[int, float], band: Band, edited: Sequence[str] = ()) -> Found:
    """The metric by iteration against the band; `edited` is what differs from the preset."""
    values = list(points.values())
    start, end = fmean(values[: band.first]), fmean(values[-band.last :])
    every = -(-len(points) // ROWS)
    numbers: dict[str, Any] = {
        "mean at the start and at the end": [start, end],
        "accepted at the start": list(band.start),
        "accepted at the end": list(band.end),
        "published": band.source,
        "edits of the preset": list(edited),
        "picture": PICTURE,
        "curve": [{"iteration": number, band.metric: points[number]} for number in [*points][::-every][::-1]],
    }
    said = f"{band.metric} went from {start:.3f} to {end:.3f}"
    if not band.start[0] <= start <= band.start[1]:
        advice = "The base differs: look at edits, weights, prompts and scorer."
        return Found("fail", f"{said}; it should begin within {_range(band.start)}. {advice}", numbers)
    if not band.end[0] <= end <= band.end[1]:
        return Found("fail", f"{said}; it should end within {_range(band.end)}. Send this page.", numbers)
    return Found("pass", f"{said}, within {_range(band.end)}.", numbers)


def picture(points: Mapping[int, float], band: Band) -> bytes:
    """A PNG of the curve, with the accepted ranges at its ends."""
    x, y = np.array(list(points)), np.array(list(points.values()))

    def draw(axes: Axes) -> None:
        draw_curves(axes, {band.variant: Curve(x, y, y, y)}, [band.variant], band.metric)
        for place, (low, high) in ((x[0], band.start), (x[-1], band.end)):
            axes.plot([place, place], [low, high], color=MUTED, linewidth=6, alpha=2 * BAND_ALPHA)

    return figures.png([draw], SIZE)


def _range(ends: tuple[float, float]) -> str:
    return f"{ends[0]:g} to {ends[1]:g}"
