"""Highlights of a run: reward curves, images of base and variants, and scores compared with the base.

The content is that of the report, for the variants that are finished so far.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from PIL import Image

from chunk_grpo.errors import DataError
from chunk_grpo.reporting import gallery, plots, series, tables
from chunk_grpo.reporting.benchmarks import EVAL
from chunk_grpo.reporting.comparisons import FROM_BASE, Comparisons, headline
from chunk_grpo.reporting.content import REWARD_METRICS
from chunk_grpo.reporting.evidence import (
    BASE,
    MODES,
    REWARD,
    ReportSettings,
    ScoreBook,
    ScoredPrompts,
    Source,
)
from chunk_grpo.reporting.figures import png
from chunk_grpo.reporting.gallery import Column, GridRow, Picture
from chunk_grpo.reporting.highlight import Highlight, escaped, smaller
from chunk_grpo.reporting.page import HALF, MARGINS, ROW
from chunk_grpo.reporting.statistics import METHOD
from chunk_grpo.reporting.tables import Cell, Row, Table

IMAGES_LIMIT = 1_000_000
"""Largest size of all pictures of a grid in bytes; base64 adds a third."""

WIDTH, SMALL, LARGE = 560, 112, 256
"""Pixels: total width of a row's images, and approximate smallest and largest side of one. Pages cannot scale them."""

QUALITY = 84
"""JPEG quality."""


def rewards_highlight(settings: ReportSettings, metrics: Mapping[str, Source]) -> Highlight:
    """Reward by iteration of the variants that have trained.

    Args:
        settings: Settings of the report.
        metrics: Variant to schema train_metrics.
    """
    draws = [
        partial(
            plots.draw_curves,
            curves=series.optional_curves(metrics, metric),
            variants=settings.variants,
            title=title,
        )
        for metric, title in REWARD_METRICS.items()
    ]
    legend = partial(plots.draw_legend, variants=settings.variants)
    picture = smaller(png(draws, HALF, legend, plots.legend_height(settings.variants)))
    lines = [
        "## Reward by iteration",
        "",
        "Mean over training seeds; with few variants, bands show the lowest and highest seed. "
        "Iteration 0 is the base model." + _missing("trained", settings.variants, metrics),
        "",
        "![Training reward by iteration, one line per variant](rewards.png)",
    ]
    return Highlight("rewards", "Reward curves", "\n".join(lines), {"rewards.png": picture})


def chosen_prompts(settings: ReportSettings, prompts: Source) -> tuple[ScoredPrompts, tuple[str, ...]]:
    """The held-out prompts, and the ids of those in the image grid; both as in the report.

    Raises:
        DataError: There are no held-out prompts.
    """
    columns = (
        prompts.table.column(name).to_pylist() for name in ("prompt_id", "category", "prompt", "split")
    )
    held_out = [row for *row, split in zip(*columns, strict=True) if split == EVAL]
    if not held_out:
        raise DataError(
            f"{prompts.path}: must have prompts with split={EVAL}; run the stage prepare_prompts again"
        )
    found = ScoredPrompts(*zip(*held_out, strict=True))
    return found, gallery.choose_prompts(found, settings.grid_prompts, settings.seed)


def images_highlight(settings: ReportSettings, prompts: Source, images: Mapping[str, Source]) -> Highlight:
    """Images of base and tuned variants for the same prompts and noise; prompts beyond `IMAGES_LIMIT` are omitted.

    Args:
        settings: Settings of the report.
        prompts: Schema prompts.
        images: Policy, including the base, to schema images; may contain the grid's prompts only.

    Raises:
        DataError: An image is missing, cannot be decoded, or was made from another seed than the base's.
    """
    held_out, chosen = chosen_prompts(settings, prompts)
    texts = dict(zip(held_out.ids, held_out.captions, strict=True))
    tuned = [variant for variant in settings.variants if variant in images]
    columns = (Column(BASE, BASE), *(Column(variant, "tuned") for variant in tuned))
    rows = gallery.grid_rows(chosen, columns, images, texts, ScoreBook({}, settings.rewards), ())
    shown, pictures = _fitting(rows)
    table = Table(
        ("prompt", BASE, *(f"{variant}, tuned" for variant in tuned)),
        tuple(
            Row(
                f"{escaped(row.prompt)}<br>seed {row.seed}",
                tuple(Cell(f"![{escaped(picture.alt)}]({name})") for name, picture in of_row),
            )
            for row, of_row in shown
        ),
    )
    lines = [
        "## The same prompts and seeds",
        "",
        "All images of a row have the same prompt and the same noise (sample 0; tuned policies: training seed "
        f"{min(settings.train_seeds)}). Prompts were drawn without using any score."
        + _missing("drawn", settings.variants, images),
        "",
        tables.to_markdown(table).replace("---:", ":---:"),
    ]
    return Highlight("images", "Images of base and tuned policies", "\n".join(lines), pictures)


def scores_highlight(
    settings: ReportSettings, prompts: Source, scores: Mapping[tuple[str, str], Source]
) -> Highlight:
    """The report's comparison with the base, for the variants that are fully scored.

    Args:
        settings: Settings of the report.
        prompts: Schema prompts.
        scores: (policy, scorer) to schema scores; includes the base, and each variant by all scorers or none.

    Raises:
        DataError: A prompt, a sample, a mode or a training seed is missing.
    """
    scored = [variant for variant in settings.variants if (variant, settings.scorers[0]) in scores]
    part = replace(settings, variants=tuple(scored))
    book = ScoreBook(scores, settings.rewards)
    held_out = book.prompt_set(prompts, EVAL, settings.scorers[0])
    if held_out is None:
        raise DataError(
            f"{prompts.path}: no prompt with split={EVAL} was scored for the base; run the generate and score "
            "stages again"
        )
    against = Comparisons(book, held_out, part)
    measures = (REWARD, *settings.scorers)
    found = {m: [against.against_base(v, mode, m) for v in scored for mode in MODES] for m in measures}
    answer, sentence = headline([c for c in found[REWARD] if c.mode == "tuned"])
    draws = [
        partial(plots.draw_differences, rows=found[m], variants=settings.variants, title=f"{m}, {FROM_BASE}")
        for m in measures[:2]
    ]
    size = (HALF[0], max(HALF[1], MARGINS + ROW * len(found[REWARD])))
    lines = [
        f"## {answer}",
        "",
        sentence + _missing("scored", settings.variants, scored),
        "",
        f"![Differences from the base model with 95 % intervals: {' and '.join(measures[:2])}](scores.png)",
        "",
        "Below each mean: the difference from the base and its 95 % interval. Filled dots: tuned; hollow: hybrid.",
    ]
    for table in tables.in_parts(tables.policy_table(against, scored, measures)):
        # Three short lines per cell keep the table narrow: pages that scroll tables sideways hide the last columns.
        lines += ["", tables.to_markdown(table).replace(" (", "<br>(")]
    lines += ["", METHOD.format(draws=settings.bootstrap_samples)]
    picture = smaller(png(draws, size))
    return Highlight("scores", "Scores against the base", "\n".join(lines), {"scores.png": picture})


def _missing(done: str, variants: Sequence[str], there: Mapping[str, object] | Sequence[str]) -> str:
    """A sentence that names the variants still missing; empty if there are none."""
    left = [variant for variant in variants if variant not in there]
    return f" Not {done} yet: {escaped(', '.join(left))}." if left else ""


_Named = tuple[GridRow, list[tuple[str, Picture]]]


def _fitting(rows: Sequence[GridRow]) -> tuple[list[_Named], dict[str, bytes]]:
    """The rows that fit `IMAGES_LIMIT`, at least one, with the names of their pictures; and the pictures by name."""
    shown: list[_Named] = []
    pictures: dict[str, bytes] = {}
    side = min(max(WIDTH // len(rows[0].pictures), SMALL), LARGE)
    for number, row in enumerate(rows):
        of_row = [(f"{number}-{place}.{_kind(p)}", p) for place, p in enumerate(row.pictures)]
        more = {name: _encoded(picture, side) for name, picture in of_row}
        if shown and sum(map(len, (pictures | more).values())) > IMAGES_LIMIT:
            break
        shown.append((row, of_row))
        pictures |= more
    return shown, pictures


def _kind(picture: Picture) -> str:
    return "png" if picture.pixelated else "jpg"


def _encoded(picture: Picture, side: int) -> bytes:
    """Encode a tiny image enlarged with sharp pixels, or a large one reduced."""
    image, out = picture.image, io.BytesIO()
    if picture.pixelated:
        factor = max(round(side / max(image.size)), 1)
        size = (image.width * factor, image.height * factor)
        image.resize(size, Image.Resampling.NEAREST).save(out, "PNG", optimize=True)
    else:
        image = image.copy()
        image.thumbnail((side, side), Image.Resampling.LANCZOS)
        image.save(out, "JPEG", quality=QUALITY)
    return out.getvalue()
