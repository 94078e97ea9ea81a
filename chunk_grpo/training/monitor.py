"""Held-out evaluation of the policy: scores, image statistics, best policy and early stopping."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from chunk_grpo.config import TrainParams
from chunk_grpo.families.base import Family
from chunk_grpo.families.prompts import PromptSet
from chunk_grpo.scorers.reward import Reward, weighted_sum
from chunk_grpo.training.early_stop import BestScore
from chunk_grpo.training.heldout import HeldoutSettings, heldout_images, heldout_scores
from chunk_grpo.training.image_statistics import image_statistics
from chunk_grpo.training.stopping import Check, never


@dataclass(frozen=True)
class Measurement:
    """Result of one held-out evaluation.

    Attributes:
        metrics: Values by name.
        images: [P * I, 3, H, W] in [0, 1]; the I images of a prompt are consecutive.
        is_best: Whether the score is higher than all earlier ones.
    """

    metrics: dict[str, float]
    images: NDArray[np.float32]
    is_best: bool


class Monitor:
    """Evaluates successive policies on the same held-out prompts and noise."""

    def __init__(self, prompts: PromptSet, reward: Reward, unseen: Reward | None, train: TrainParams) -> None:
        """Start without measurements.

        Args:
            prompts: P held-out prompts.
            reward: Training reward.
            unseen: Scorers of `train.heldout.scorers`, which training does not maximise; None: none are configured.
            train: `train` section of params.yaml.
        """
        settings = train.heldout
        self._prompts, self._reward, self._settings = prompts, reward, settings
        self._unseen = unseen if settings.scorers else None
        self._drawing = HeldoutSettings(settings.images_per_prompt, settings.seed, train.micro_batch_size)
        self.best = BestScore()

    def measure(
        self, family: Family, times: Tensor, iteration: int, check: Check, waiting: Check = never
    ) -> Measurement:
        """Sample the policy's held-out images, score them and compute their statistics.

        Args:
            family: Policy.
            times: Time grid [S + 1].
            iteration: Number of completed iterations.
            check: Called before each evaluation of the policy; raises to abort.
            waiting: Called while scoring runs; raises to abort.

        Raises:
            DataError: A latent or a score is not finite.
        """
        images = heldout_images(family, times, self._prompts, self._drawing, check)
        scores = heldout_scores(images, self._prompts, self._reward, waiting)
        metrics = {"heldout_reward": float(weighted_sum(scores, self._reward.weights).mean())}
        metrics |= {f"heldout/{name}": float(values.mean()) for name, values in scores.items()}
        decisive = metrics["heldout_reward"]
        if self._unseen is not None:
            unseen = heldout_scores(images, self._prompts, self._unseen, waiting)
            metrics |= {f"heldout/{name}": float(values.mean()) for name, values in unseen.items()}
            decisive = metrics[f"heldout/{self._settings.scorers[0]}"]
        statistics = image_statistics(images, self._settings.images_per_prompt)
        metrics |= {f"heldout_images/{name}": value for name, value in statistics.items()}
        return Measurement(metrics, images, self.best.update(iteration, decisive))

    def should_stop(self) -> bool:
        """Whether the last `patience` measurements brought no new best."""
        return self.best.should_stop(self._settings.patience)

    def state(self) -> dict[str, Any]:
        """State of the best score, for a checkpoint."""
        return self.best.state()

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`."""
        self.best = BestScore.from_state(state)
