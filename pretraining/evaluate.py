"""Step 5: exact scores of the checkpoint per category and on the WISE-like set, by ODE sampling.

`python -m pretraining.evaluate TOY`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from chunk_grpo.core.flow import ode_step, time_grid
from chunk_grpo.families.base import Conditioning, Picture, velocity_function
from chunk_grpo.families.diffusers_family import DiffusersFamily
from chunk_grpo.image_files import as_pictures
from chunk_grpo.shapes.detect import detect
from chunk_grpo.shapes.edit_judge import graded_edit, judge_edit
from chunk_grpo.shapes.edits import EDIT_KINDS, Edit, draw_edit
from chunk_grpo.shapes.judge import exact_score, graded_score, vividness
from chunk_grpo.shapes.prompts import CATEGORIES, PromptSpec, knowledge_prompts
from chunk_grpo.shapes.render import render
from pretraining.common import captions_by_category, instructions_by_kind
from pretraining.toys import KONTEXT, Toy, command_line, load_toy


def evaluation_prompts(per_category: int, seed: int) -> list[PromptSpec]:
    """Draw the same number of captions, with replacement, of each category and of the WISE-like set."""
    rng = random.Random(seed)
    pools = [*captions_by_category(), knowledge_prompts()]
    return [rng.choice(pool) for pool in pools for _ in range(per_category)]


def evaluation_edits(per_kind: int, seed: int) -> list[Edit]:
    """Draw the same number of edits of each kind."""
    rng = random.Random(seed)
    return [draw_edit(rng.choice(pool), rng) for pool in instructions_by_kind() for _ in range(per_kind)]


@torch.no_grad()
def drawn(
    settings: dict[str, Any], family: DiffusersFamily, prompts: Sequence[str], sources: Sequence[Picture] | None = None
) -> Iterator[NDArray[np.float32]]:
    """Yield an image [3, H, W] in [0, 1] of each prompt, each from noise of its own."""
    device = next(family.trainable_parameters()).device
    times = time_grid(settings["num_steps"], settings["shift"])
    nothing = family.encode([""]).tensors
    for start in range(0, len(prompts), settings["batch_size"]):
        part = slice(start, start + settings["batch_size"])
        batch, edited = prompts[part], None if sources is None else sources[part]
        generators = [torch.Generator().manual_seed(settings["seed"] + start + i) for i in range(len(batch))]
        x = torch.stack([torch.randn(family.latent_shape, generator=g) for g in generators]).to(device)
        velocity = velocity_function(family, Conditioning(family.encode(batch, edited).tensors, nothing))
        for t, t_next in pairwise(times.tolist()):
            x = ode_step(x, velocity(x, torch.full((len(x),), t, device=device)), t, t_next)
        yield from family.decode(x).cpu().numpy()


def evaluate(toy: Toy, family: DiffusersFamily, per_category: int) -> dict[str, float]:
    """Mean scores per category of captions or kind of edits, and over all."""
    judge = edit_scores if toy.name == KONTEXT else caption_scores
    return judge(toy.params["evaluate"], family, per_category)


def edit_scores(settings: dict[str, Any], family: DiffusersFamily, per_kind: int) -> dict[str, float]:
    """Mean exact score per kind and over all kinds; mean grade, and the shares of both parts of the exact rules."""
    edits = evaluation_edits(per_kind, settings["seed"])
    sources = list(as_pictures(render([edit.source for edit in edits]).numpy()))
    images = list(drawn(settings, family, [edit.prompt for edit in edits], sources))
    verdicts = [judge_edit(image, edit) for image, edit in zip(images, edits, strict=True)]
    right = [(edit.kind, verdict.fault is None) for edit, verdict in zip(edits, verdicts, strict=True)]
    scores = {kind: sum(r for of, r in right if of == kind) / per_kind for kind in EDIT_KINDS}
    return scores | {
        "exact": sum(r for _, r in right) / len(edits),
        "graded": sum(graded_edit(*pair) for pair in zip(images, edits, strict=True)) / len(edits),
        "asked": sum(verdict.asked is None for verdict in verdicts) / len(edits),
        "kept": sum(verdict.kept is None for verdict in verdicts) / len(edits),
    }


def caption_scores(settings: dict[str, Any], family: DiffusersFamily, per_category: int) -> dict[str, float]:
    """Mean exact score per category and over all six, mean grade and mean vividness."""
    specs = evaluation_prompts(per_category, settings["seed"])
    rows: list[tuple[str, bool, float, float]] = []
    for spec, picture in zip(specs, drawn(settings, family, [spec.prompt for spec in specs]), strict=True):
        found = detect(picture)
        rows.append((spec.category, exact_score(found, spec), graded_score(found, spec), vividness(picture)))
    scores: dict[str, float] = {c: sum(r[1] for r in rows if r[0] == c) / per_category for c in (*CATEGORIES, "wise")}
    standard = [row for row in rows if row[0] != "wise"]
    scores["exact"] = sum(row[1] for row in standard) / len(standard)
    scores["graded"] = sum(row[2] for row in standard) / len(standard)
    scores["vivid"] = sum(row[3] for row in standard) / len(standard)
    return scores


def score(toy: Toy) -> None:
    """Print and write the scores of a finished checkpoint."""
    family = toy.load(guided=True)
    result = evaluate(toy, family, toy.params["evaluate"]["prompts_per_category"])
    print(json.dumps(result, indent=2))
    (toy.folder / "scores.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    score(load_toy(command_line(__doc__).parse_args().toy))
