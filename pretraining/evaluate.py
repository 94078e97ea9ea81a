"""Step 5: exact scores of the checkpoint per category and on the WISE-like set, by ODE sampling.

`python -m pretraining.evaluate TOY`.
"""

from __future__ import annotations

import json
import random
from itertools import pairwise
from typing import Any

import torch

from chunk_grpo.core.flow import ode_step, time_grid
from chunk_grpo.families.base import Conditioning, velocity_function
from chunk_grpo.families.diffusers_family import DiffusersFamily
from chunk_grpo.shapes.detect import detect
from chunk_grpo.shapes.judge import exact_score, graded_score, vividness
from chunk_grpo.shapes.prompts import CATEGORIES, PromptSpec, all_prompts, knowledge_prompts
from pretraining.toys import Toy, command_line, load_toy


def evaluation_prompts(per_category: int, seed: int) -> list[PromptSpec]:
    """Draw the same number of captions, with replacement, of each category and of the WISE-like set."""
    rng = random.Random(seed)
    pools = [[p for p in all_prompts() if p.category == category] for category in CATEGORIES] + [
        knowledge_prompts()
    ]
    return [rng.choice(pool) for pool in pools for _ in range(per_category)]


@torch.no_grad()
def evaluate(params: dict[str, Any], family: DiffusersFamily, per_category: int) -> dict[str, float]:
    """Mean exact score per category and over all six, mean grade and mean vividness."""
    settings = params["evaluate"]
    device = next(family.trainable_parameters()).device
    specs = evaluation_prompts(per_category, settings["seed"])
    times = time_grid(settings["num_steps"], settings["shift"])
    nothing = family.encode([""]).tensors
    rows: list[tuple[str, bool, float, float]] = []
    for start in range(0, len(specs), settings["batch_size"]):
        batch = specs[start : start + settings["batch_size"]]
        generators = [torch.Generator().manual_seed(settings["seed"] + start + i) for i in range(len(batch))]
        x = torch.stack([torch.randn(family.latent_shape, generator=g) for g in generators]).to(device)
        text = Conditioning(family.encode([spec.prompt for spec in batch]).tensors, nothing)
        velocity = velocity_function(family, text)
        for t, t_next in pairwise(times.tolist()):
            x = ode_step(x, velocity(x, torch.full((len(x),), t, device=device)), t, t_next)
        for spec, picture in zip(batch, family.decode(x).cpu().numpy(), strict=True):
            found = detect(picture)
            rows.append(
                (spec.category, exact_score(found, spec), graded_score(found, spec), vividness(picture))
            )
    scores: dict[str, float] = {
        c: sum(r[1] for r in rows if r[0] == c) / per_category for c in (*CATEGORIES, "wise")
    }
    standard = [row for row in rows if row[0] != "wise"]
    scores["exact"] = sum(row[1] for row in standard) / len(standard)
    scores["graded"] = sum(row[2] for row in standard) / len(standard)
    scores["vivid"] = sum(row[3] for row in standard) / len(standard)
    return scores


def score(toy: Toy) -> None:
    """Print and write the scores of a finished checkpoint."""
    family = toy.load(guided=True)
    result = evaluate(toy.params, family, toy.params["evaluate"]["prompts_per_category"])
    print(json.dumps(result, indent=2))
    (toy.folder / "scores.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    score(load_toy(command_line(__doc__).parse_args().toy))
