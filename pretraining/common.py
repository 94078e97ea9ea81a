"""Shared code of the recipe's steps: batches of captions and images, curves on disk, a schedule."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from chunk_grpo.shapes.edits import EDIT_KINDS, Edit, Instruction, all_instructions, draw_edit
from chunk_grpo.shapes.layout import sample_scene
from chunk_grpo.shapes.prompts import CATEGORIES, PromptSpec, all_prompts
from chunk_grpo.shapes.render import render

Spec = TypeVar("Spec", PromptSpec, Edit)


def captions_by_category() -> list[list[PromptSpec]]:
    """All captions but the knowledge phrases, in the order of `CATEGORIES`."""
    return [[p for p in all_prompts() if p.category == category] for category in CATEGORIES]


def instructions_by_kind() -> list[list[Instruction]]:
    """All instructions, in the order of `EDIT_KINDS`."""
    return [[i for i in all_instructions() if i.kind == kind] for kind in EDIT_KINDS]


class Batch(NamedTuple, Generic[Spec]):
    """B texts and images to learn from."""

    specs: list[Spec]
    """Captions or edits."""
    images: Tensor
    """[B, 3, H, W] in [-1, 1]."""
    sources: Tensor | None = None
    """The pictures that the instructions edit, as `images`; None: captions edit none."""


class SceneStream:
    """Endless batches of captions and images."""

    def __init__(
        self, seed: int, device: torch.device, weights: dict[str, float] | None = None, *, left_to_right: bool = False
    ) -> None:
        """Start the stream of captions and scenes at `seed`; images are rendered on `device`.

        `weights` is the relative frequency of each category, default 1; None: all equal. `left_to_right` as in
        `sample_scene`.
        """
        self._rng = random.Random(seed)
        self._device = device
        self._left_to_right = left_to_right
        self._weights = [(weights or {}).get(category, 1.0) for category in CATEGORIES]
        self._by_category = captions_by_category()

    def batch(self, size: int) -> Batch[PromptSpec]:
        pools = self._rng.choices(self._by_category, self._weights, k=size)
        specs = [self._rng.choice(pool) for pool in pools]
        scenes = [sample_scene(spec, self._rng, left_to_right=self._left_to_right) for spec in specs]
        return Batch(specs, render(scenes, self._device) * 2 - 1)


class EditStream:
    """Endless batches of instructions, the pictures that they edit, and the results."""

    def __init__(
        self, seed: int, device: torch.device, weights: dict[str, float] | None = None, *, mistakes: float = 0.0
    ) -> None:
        """Start the stream at `seed`; pictures are rendered on `device`. `weights` as in `SceneStream`, by kind.

        `mistakes` is the share of edits whose result is the picture as it was.
        """
        self._rng = random.Random(seed)
        self._device = device
        self._mistakes = mistakes
        self._weights = [(weights or {}).get(kind, 1.0) for kind in EDIT_KINDS]
        self._by_kind = instructions_by_kind()

    def batch(self, size: int) -> Batch[Edit]:
        pools = self._rng.choices(self._by_kind, self._weights, k=size)
        edits = [draw_edit(self._rng.choice(pool), self._rng) for pool in pools]
        before = [edit.source for edit in edits]
        # No number is drawn where there are no mistakes: then the stream is as it was.
        wrong = [self._mistakes > 0 and self._rng.random() < self._mistakes for _ in edits]
        after = [edit.source if mistake else edit.result for edit, mistake in zip(edits, wrong, strict=True)]
        images, sources = (render(scenes, self._device) * 2 - 1 for scenes in (after, before))
        return Batch(edits, images, sources)


class Curve:
    """Metrics by step and seconds, printed and saved as JSON lines."""

    def __init__(self, path: Path, *, keep: bool = False) -> None:
        """Start an empty curve at `path`; with `keep`, append to the existing one."""
        self._path = path
        self._start = time.perf_counter()
        path.parent.mkdir(parents=True, exist_ok=True)
        if not keep:
            path.write_text("", encoding="utf-8")

    def add(self, step: int, **values: float) -> None:
        row = {"step": step, "seconds": round(time.perf_counter() - self._start, 1)}
        row.update({name: round(float(torch.as_tensor(value).detach()), 5) for name, value in values.items()})
        print(json.dumps(row), flush=True)
        with self._path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(row) + "\n")


def cosine_with_warmup(
    optimizer: torch.optim.Optimizer, warmup: int, total: int
) -> torch.optim.lr_scheduler.LRScheduler:
    """Linear warm-up, then cosine to zero."""
    rise = torch.optim.lr_scheduler.LinearLR(optimizer, 1e-3, 1.0, max(warmup, 1))
    fall = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(total - warmup, 1))
    return torch.optim.lr_scheduler.SequentialLR(optimizer, [rise, fall], [max(warmup, 1)])
