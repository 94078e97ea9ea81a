"""Images that training made right, and images that it made wrong, by a scorer that says 1 or 0.

Counted are the first image of each prompt, by the base and by the tuned policy of the last variant with its lowest
training seed. Shown are prompts in a random order that depends on the report's seed alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from chunk_grpo.reporting.evidence import BASE, Drawn, Evidence, ReportSettings, ScoreBook, ScoredPrompts
from chunk_grpo.reporting.gallery import GridRow, Picture, first_images, grid_rows

RIGHT, WRONG = 1.0, 0.0
SHOWN = 4
"""Largest number of prompts shown on each side."""


@dataclass(frozen=True)
class Flip:
    """A prompt whose image became right or wrong."""

    row: GridRow
    """The prompt, and the images of base and tuned policy."""
    reason: str
    """The rule that the wrong one breaks, or the scores of both by all scorers."""


@dataclass(frozen=True)
class Flips:
    """Prompts whose image changed from wrong to right, or from right to wrong."""

    scorer: str
    """Scorer of the images, with scores 0 and 1."""
    variant: str
    total: int
    """Number of prompts whose images are compared."""
    won: int
    """Number of prompts with a wrong image by the base and a right one by the tuned policy."""
    lost: int
    """Number of prompts with the reverse."""
    won_rows: tuple[Flip, ...]
    lost_rows: tuple[Flip, ...]
    has_rules: bool
    """Whether the scorer has rules that an image can break."""

    @property
    def edits(self) -> bool:
        """Whether the images are edits of pictures, which are shown too."""
        return any(flip.row.source is not None for flip in (*self.won_rows, *self.lost_rows))


def flips_of(
    evidence: Evidence, settings: ReportSettings, prompts: ScoredPrompts, book: ScoreBook, texts: Mapping[str, str]
) -> Flips | None:
    """Flips of the last variant, or None if no scorer of the eval split, `prompts`, has scores of 0 and 1 alone."""
    variant = settings.variants[-1]
    columns = (Drawn(BASE, BASE), Drawn(variant, "tuned"))
    for scorer in settings.scorers:
        before, after = (_first_scores(book, column, scorer, prompts) for column in columns)
        if {*before.values(), *after.values()} <= {RIGHT, WRONG}:
            break
    else:
        return None
    order = np.random.default_rng(settings.seed).permutation(len(prompts.ids))
    both = [name for name in (prompts.ids[i] for i in order) if name in before and name in after]
    won = [name for name in both if before[name] < after[name]]
    lost = [name for name in both if before[name] > after[name]]

    kind = next(use.kind for use in settings.measured if use.name == scorer)
    has_rules = kind in ("shapes-exact", "shapes-edit")
    records = _metadata(evidence) if has_rules else {}

    def rows(names: list[str], wrong: int) -> tuple[Flip, ...]:
        chosen = list({texts[name]: name for name in names}.values())[:SHOWN]
        images = {p: first_images(p, evidence.images[p], chosen) for p in (BASE, variant)}
        shown = grid_rows(chosen, columns, images, texts, book, settings.scorers, evidence.pictures)
        rules = [
            _rule(kind, row.pictures[wrong], row.prompt, records[name]) if has_rules else None
            for name, row in zip(chosen, shown, strict=True)
        ]
        return tuple(Flip(row, rule or _scores(row)) for row, rule in zip(shown, rules, strict=True))

    return Flips(scorer, variant, len(both), len(won), len(lost), rows(won, 0), rows(lost, 1), has_rules)


def _metadata(evidence: Evidence) -> dict[str, str]:
    table = evidence.prompts.table
    return dict(zip(table["prompt_id"].to_pylist(), table["metadata"].to_pylist(), strict=True))


def _rule(kind: str, picture: Picture, prompt: str, metadata: str) -> str | None:
    """The rule of the shapes world that an image breaks; None if none or the image was reduced for the page."""
    from chunk_grpo.shapes.detect import detect  # here: importing torch takes seconds
    from chunk_grpo.shapes.edit_judge import judge_edit
    from chunk_grpo.shapes.edits import parse_edit
    from chunk_grpo.shapes.judge import broken_rule
    from chunk_grpo.shapes.prompts import parse_metadata

    if not picture.pixelated:
        return None
    pixels = np.asarray(picture.image, dtype=np.float32).transpose(2, 0, 1) / np.float32(255)
    if kind == "shapes-edit":
        return judge_edit(pixels, parse_edit(prompt, json.loads(metadata))).fault
    return broken_rule(detect(pixels), parse_metadata({**json.loads(metadata), "prompt": prompt}))


def _scores(row: GridRow) -> str:
    """Scores of the base's and of the tuned policy's image, by scorer."""
    before, after = (picture.scores for picture in row.pictures)
    return ", ".join(f"{one.label} {one.text} → {other.text}" for one, other in zip(before, after, strict=True))


def _first_scores(book: ScoreBook, column: Drawn, scorer: str, prompts: ScoredPrompts) -> dict[str, float]:
    """Score of sample 0 of each prompt, of the lowest training seed; without prompts of which any is refused."""
    seed = book.train_seeds(column.policy, column.mode, scorer)[0]
    samples = book.samples(scorer, prompts.ids)
    return {
        name: book.one(column.policy, column.mode, scorer, seed, (name, 0))
        for name in prompts.ids
        if samples[name][:1] == [0]
    }
