"""Image grid: the base and every compared policy on the same prompts and seeds.

Prompts are drawn without using any score, in equal numbers from each category as long as it has prompts left. They are
shown in the order of how much their images change.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from PIL import Image, ImageChops, ImageDraw, ImageFont, ImageStat

from chunk_grpo.artifacts import SCHEMAS, read_parts
from chunk_grpo.artifacts.pictures import open_pictures
from chunk_grpo.errors import DataError
from chunk_grpo.image_files import decode_image
from chunk_grpo.reporting.comparisons import number
from chunk_grpo.reporting.evidence import BASE, Drawn, ScoreBook, ScoredPrompts, Source
from chunk_grpo.reporting.markdown import data_uri
from chunk_grpo.reporting.palette import INK, MUTED, is_crowded

TINY = 128
"""Pixels. Images up to this size are enlarged with sharp pixels; larger ones are shown as thumbnails."""

GRID_VARIANTS = 4
"""Variants per grid if they do not all fit: the base and four variants in two modes fill the page width."""

VISIBLE = 0.01
"""Smallest visible change of an image: mean difference of its colour values, as a share of their range."""

FIRST = 2
"""Prompts of a grid that the page shows at once; the others are folded."""

THUMBNAIL = 384
_DIGITS = 2
TILE = 144
HEADER, LABEL, GAP = 44, 26, 8


@dataclass(frozen=True)
class PictureScore:
    """Score of one image."""

    label: str
    """Name of the scorer."""
    text: str
    verdict: str = ""
    """`above` or `below` the base's image of the same prompt and seed; empty if equal as shown, or unknown."""


@dataclass(frozen=True)
class Picture:
    """One image of the grid."""

    image: Image.Image
    """Decoded RGB image; a thumbnail if the original is large."""
    uri: str
    pixelated: bool
    """Whether the image is enlarged with sharp pixels."""
    alt: str
    scores: tuple[PictureScore, ...]


@dataclass(frozen=True)
class GridRow:
    """One prompt with its images, one for each column."""

    prompt: str
    seed: int
    """Seed of the image noise."""
    sample: int
    pictures: tuple[Picture, ...]
    """One image per column; the base's is the first."""
    source: Picture | None = None
    """Picture that the prompt edits; None: it draws a new image."""

    @property
    def shown(self) -> tuple[Picture, ...]:
        """The source picture if there is one, and the images."""
        return self.pictures if self.source is None else (self.source, *self.pictures)

    @property
    def change(self) -> float:
        """Largest mean difference of the colour values from the base's image, in [0, 1]."""
        base, *others = (picture.image for picture in self.pictures)
        means = (ImageStat.Stat(ImageChops.difference(base, image)).mean for image in others)
        return max(sum(mean) / len(mean) / 255 for mean in means)


@dataclass(frozen=True)
class Grid:
    """The base and some compared policies side by side."""

    name: str
    """Name of its file without suffix."""
    variants: tuple[str, ...]
    columns: tuple[Drawn, ...]
    """The base, then the images of each compared policy."""
    changed: tuple[GridRow, ...]
    """Prompts with a visible change in any column, the most changed first."""
    unchanged: tuple[GridRow, ...]

    @property
    def first(self) -> tuple[GridRow, ...]:
        """The changed prompts that are shown at once."""
        return self.changed[:FIRST]

    @property
    def more(self) -> tuple[GridRow, ...]:
        """The other changed prompts."""
        return self.changed[FIRST:]

    @property
    def edits(self) -> bool:
        """Whether the prompts edit pictures, which are shown before the base's images."""
        return any(row.source is not None for row in (*self.changed, *self.unchanged))

    def modes_of(self, variant: str) -> list[str]:
        """Modes of a compared policy's columns."""
        return [column.mode for column in self.columns if column.policy == variant]


def grid_of(name: str, variants: Sequence[str], columns: Sequence[Drawn], rows: Sequence[GridRow]) -> Grid:
    """A grid of some rows in any order."""
    order = sorted(rows, key=lambda row: -row.change)
    changed = tuple(row for row in order if row.change >= VISIBLE)
    return Grid(name, tuple(variants), tuple(columns), changed, tuple(order[len(changed) :]))


def grid_variants(variants: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """The compared policies of each grid: all in one grid, or if there are many, as many as fit the page width."""
    size = GRID_VARIANTS if is_crowded(variants) else len(variants)
    return tuple(tuple(variants[first : first + size]) for first in range(0, len(variants), size))


def choose_prompts(prompts: ScoredPrompts, count: int, seed: int) -> tuple[str, ...]:
    """Choose at most `count` prompts with distinct captions; categories alternate, in each the order is random."""
    generator = np.random.default_rng(seed)
    of_caption = {prompts.captions[i]: i for i in generator.permutation(len(prompts.ids))}
    order = list(of_caption.values())
    categories = dict.fromkeys(prompts.categories)
    queues = {c: [prompts.ids[i] for i in order if prompts.categories[i] == c] for c in categories}
    chosen: list[str] = []
    while len(chosen) < min(count, len(order)):
        chosen += [queue.pop(0) for queue in queues.values() if queue]
    return tuple(chosen[:count])


def first_images(policy: str, path: str, prompt_ids: Sequence[str]) -> Source:
    """The policy's images of sample 0 for these prompts. The others are read, but not kept."""
    wanted, kept = pa.array(prompt_ids, pa.string()), [SCHEMAS["images"].columns.empty_table()]
    for part in read_parts(path, "images", of={"policy": policy}):
        of_grid = pc.and_(pc.equal(part["sample"], 0), pc.is_in(part["prompt_id"], wanted))
        kept.append(part.filter(of_grid).replace_schema_metadata(kept[0].schema.metadata))
    return Source(path, pa.concat_tables(kept))


def grid_rows(
    chosen: Sequence[str],
    columns: Sequence[Drawn],
    images: Mapping[str, Source],
    texts: Mapping[str, str],
    book: ScoreBook,
    scorers: Sequence[str],
    pictures: str | None,
) -> list[GridRow]:
    """The grid's images with their scores: lowest training seed of each policy, lowest sample of each prompt.

    `pictures` is the folder of those that prompts edit; None: it is not there.

    An image from another seed than the base's is a DataError, as is one that is missing or cannot be decoded.
    """
    labels = short_labels(scorers)
    rows, sources = [], _sources(chosen, pictures, texts)
    for prompt_id in chosen:
        shown, of_base = [], [math.nan] * len(scorers)
        first = _first_image(images[BASE], Drawn(BASE, BASE), prompt_id)
        for column in columns:
            path, found = images[column.policy].path, _first_image(images[column.policy], column, prompt_id)
            if found["seed"] != first["seed"]:
                raise DataError(
                    f"{path}: prompt_id={prompt_id} sample={found['sample']} has seed {found['seed']}, the base "
                    f"has {first['seed']}; images are paired by seed; run "
                    "`dvc repro --force --single-item generate_base generate`, then `dvc repro`"
                )
            sample = (prompt_id, found["sample"])
            values = [book.one(column.policy, column.mode, s, found["train_seed"], sample) for s in scorers]
            scores = tuple(map(_score, labels, values, of_base))
            of_base = values if column.policy == BASE else of_base
            mode = "" if column.mode == BASE else f", {column.mode}"
            alt = f"{texts[prompt_id]}: {column.policy}{mode}"
            shown.append(_picture(found["image"]["bytes"], path, alt, scores))
        source = sources.get(prompt_id)
        rows.append(GridRow(texts[prompt_id], first["seed"], first["sample"], tuple(shown), source))
    return rows


def _sources(chosen: Sequence[str], pictures: str | None, texts: Mapping[str, str]) -> dict[str, Picture]:
    """Pictures that the chosen prompts edit."""
    if pictures is None:
        return {}
    with open_pictures(pictures) as found:
        return {
            name: _picture(found[name].read_bytes(), str(found[name]), f"{texts[name]}: source", ())
            for name in chosen
            if name in found
        }


def short_labels(scorers: Sequence[str]) -> tuple[str, ...]:
    """Scorer names without the part before the first hyphen if all share it (shapes-exact: exact)."""
    heads = {name.split("-", 1)[0] for name in scorers}
    if len(heads) == 1 and all("-" in name for name in scorers):
        return tuple(name.split("-", 1)[1] for name in scorers)
    return tuple(scorers)


def grid_png(rows: Sequence[GridRow], columns: Sequence[Drawn]) -> bytes:
    """The grid as one PNG for the Markdown, at twice the display size."""
    heads = [(column.policy, "" if column.mode == BASE else column.mode) for column in columns]
    if rows[0].source is not None:
        heads.insert(0, ("source", ""))
    width = GAP + len(heads) * (TILE + GAP)
    height = HEADER + len(rows) * (LABEL + TILE + GAP)
    canvas = Image.new("RGB", (2 * width, 2 * height), "white")
    pen = ImageDraw.Draw(canvas)
    font, small = ImageFont.load_default(size=26), ImageFont.load_default(size=24)
    for place, (policy, mode) in enumerate(heads):
        left = 2 * (GAP + place * (TILE + GAP))
        pen.text((left, 10), policy, fill=INK, font=font)
        pen.text((left, 44), mode, fill=MUTED, font=small)
    for index, row in enumerate(rows):
        top = 2 * (HEADER + index * (LABEL + TILE + GAP))
        pen.text((2 * GAP, top + 12), row.prompt, fill=INK, font=small)
        for place, picture in enumerate(row.shown):
            how = Image.Resampling.NEAREST if picture.pixelated else Image.Resampling.LANCZOS
            tile = picture.image.resize((2 * TILE, 2 * TILE), how)
            canvas.paste(tile, (2 * (GAP + place * (TILE + GAP)), top + 2 * LABEL))
    out = io.BytesIO()
    canvas.save(out, "PNG", optimize=True)
    return out.getvalue()


def _first_image(source: Source, column: Drawn, prompt_id: str) -> dict[str, Any]:
    """The row of the lowest training seed and sample."""
    table = source.table
    wanted = pc.and_(
        pc.and_(pc.equal(table["policy"], column.policy), pc.equal(table["mode"], column.mode)),
        pc.equal(table["prompt_id"], prompt_id),
    )
    found = table.filter(wanted).sort_by([("train_seed", "ascending"), ("sample", "ascending")])
    if found.num_rows == 0:
        raise DataError(
            f"{source.path}: no image with policy={column.policy} mode={column.mode} prompt_id={prompt_id}; "
            "run the generate stage of this policy again"
        )
    return dict(found.slice(0, 1).to_pylist()[0])


def _score(label: str, value: float, of_base: float) -> PictureScore:
    """A score, or "refused" if the scorer gave none."""
    if math.isnan(value):
        return PictureScore(label, "refused")
    shown, base = round(value, _DIGITS), round(of_base, _DIGITS)  # equal texts get no mark
    verdict = "above" if shown > base else "below" if shown < base else ""
    return PictureScore(label, number(value, _DIGITS), verdict)


def _picture(data: bytes, path: str, alt: str, scores: tuple[PictureScore, ...]) -> Picture:
    image = Image.fromarray(decode_image(data, f"{path}, {alt!r}"))
    out = io.BytesIO()
    tiny = max(image.size) <= TINY
    if tiny:
        image.save(out, "PNG", optimize=True)
    else:
        image.thumbnail((THUMBNAIL, THUMBNAIL), Image.Resampling.LANCZOS)
        image.save(out, "JPEG", quality=86)
    return Picture(image, data_uri(out.getvalue()), tiny, alt, scores)
