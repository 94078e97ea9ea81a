"""A finished run of the pipeline in a checkout: its model, prompts, policies and scorers, for experiments on them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chunk_grpo.artifacts import read_table
from chunk_grpo.artifacts.layout import Layout
from chunk_grpo.config import Params, load_params
from chunk_grpo.core.sde import step_noise
from chunk_grpo.families.prompts import PromptSet
from chunk_grpo.library.model import Model
from chunk_grpo.scorers.reward import Reward
from chunk_grpo.scorers.running.placing import place_scorer
from chunk_grpo.training.method import StepGrid
from chunk_grpo.training.scoring import score_latents

BATCH = 64
"""Images that are decoded together."""


@dataclass(frozen=True)
class FinishedRun:
    """What an experiment needs of a finished run."""

    params: Params
    model: Model
    """Its checkpoint, at the size of the evaluation images."""
    prompts: PromptSet
    """Prompts of the eval split."""
    reward: Reward
    """Scorers of the eval split."""

    @property
    def grid(self) -> StepGrid:
        """Sampling grid of the rollouts, by `sampling`."""
        sampling = self.params.sampling
        times = self.model.times(sampling.num_steps, sampling.shift)
        return StepGrid(times, *step_noise(sampling.sde, times, sampling.eta))

    def scores(self, latents: Tensor, rows: Sequence[int]) -> dict[str, NDArray[np.float64]]:
        """Values [B] of each scorer for final latents [B, L, D]; `rows` has the index of each image's prompt."""
        return score_latents(self.model.base, latents, self.prompts.rows(rows), self.reward, BATCH)


@contextmanager
def finished_run(checkout: Path) -> Iterator[FinishedRun]:
    """Open the run in a checkout; its paths are relative to it, so it is the working directory inside the block."""
    with chdir(checkout), torch.no_grad():
        params = load_params(Path("params.yaml"))
        drawn = params.generate
        size = {"height": drawn.height, "width": drawn.width}
        model = Model(params.model.model_copy(update=size), drawn.cfg_scale)
        scorers = {
            name: place_scorer(name, settings, params.executors.get(name))
            for name, settings in params.scorers.items()
            if "eval" in settings.splits
        }
        yield FinishedRun(params, model, _prompts(model), Reward(scorers, dict.fromkeys(scorers, 1.0)))


def _prompts(model: Model) -> PromptSet:
    """Held-out prompts, encoded anew. An image's noise depends on the id of its prompt."""
    table = read_table(Layout().prompts, "prompts").to_pylist()
    rows = [row for row in table if row["split"] == "eval"]
    encoded = model.encode([row["prompt"] for row in rows], [json.loads(row["metadata"]) for row in rows])
    return replace(encoded, ids=[row["prompt_id"] for row in rows])
