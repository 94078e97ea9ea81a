"""A finished run of the pipeline in a checkout: its model, prompts, policies and scorers, for experiments on them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from chunk_grpo.artifacts import read_json
from chunk_grpo.config import Params, load_params
from chunk_grpo.families.base import Family
from chunk_grpo.families.prompts import PromptSet
from chunk_grpo.scorers.base import Scorer
from chunk_grpo.scorers.reward import Reward
from chunk_grpo.scorers.running.placing import place_checked
from chunk_grpo.scorers.running.spec import spec_from
from chunk_grpo.training.rollouts import score_latents
from stages._inputs import encoded_prompts, load_model
from stages.generate import trained_policy

EVALUATION = Path("artifacts/prompts/evaluation.parquet"), Path("artifacts/embeddings/evaluation")
BATCH = 64
"""Images that are decoded together."""


@dataclass(frozen=True)
class FinishedRun:
    """What an experiment needs of a finished run."""

    params: Params
    """Its parameters."""
    base: Family
    """Base model, with the parts "transformer" and "vae"."""
    prompts: PromptSet
    """Prompts of the eval split."""
    reward: Reward
    """Scorers of the eval split."""

    @contextmanager
    def policy(self, variant: str, seed: int) -> Iterator[Family]:
        """A trained policy; inside the block it takes the place of the base model's network."""
        with trained_policy(self.base, f"artifacts/train/{variant}/seed-{seed}") as tuned:
            yield tuned

    def scores(self, latents: Tensor, rows: Sequence[int]) -> dict[str, NDArray[np.float64]]:
        """Values [B] of each scorer for final latents [B, L, D]; `rows` has the index of each image's prompt."""
        return score_latents(self.base, latents, self.prompts.rows(rows), self.reward, BATCH)


@contextmanager
def finished_run(checkout: Path) -> Iterator[FinishedRun]:
    """Open the run in a checkout; its paths are relative to it, so it is the working directory inside the block."""
    before = Path.cwd()
    os.chdir(checkout)
    try:
        params = load_params(Path("params.yaml"))
        prompts, embeddings = map(str, EVALUATION)
        base = load_model(params, "artifacts/inputs/model.json", ("transformer", "vae"), params.generate)
        with encoded_prompts(prompts, embeddings, params.generate) as stored:
            yield FinishedRun(params, base, stored.require(stored.of("eval")), _scorers(params))
    finally:
        os.chdir(before)


def _scorers(params: Params) -> Reward:
    found: dict[str, Scorer] = {}
    for name, settings in params.scorers.items():
        path = f"artifacts/specs/scorers/{name}.json"
        if "eval" in settings.splits:
            found[name] = place_checked(spec_from(read_json(path), path), params.scorers, params.executors)
    return Reward(found, dict.fromkeys(found, 1.0))
