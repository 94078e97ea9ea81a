"""Held-out evaluation while training: ODE samples of held-out prompts with fixed noise, scores, best policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chunk_grpo.config import TrainParams
from chunk_grpo.core.rollout import rollout_ode, sample_noise
from chunk_grpo.families.base import Family, velocity_function
from chunk_grpo.families.prompts import PromptSet, require_finite
from chunk_grpo.image_files import as_pictures
from chunk_grpo.scorers.base import ScoreBatch
from chunk_grpo.scorers.reward import Reward, weighted_sum
from chunk_grpo.scorers.running.background import Background, waited
from chunk_grpo.seeding import generator
from chunk_grpo.training.early_stop import BestScore
from chunk_grpo.training.image_statistics import image_statistics
from chunk_grpo.training.rollouts import DIVERGED
from chunk_grpo.training.stopping import Check, Stoppable, never, seconds_to_end


@dataclass(frozen=True)
class HeldoutSettings:
    """Settings of the held-out images.

    Attributes:
        images_per_prompt: Images per prompt, each with its own fixed noise.
        seed: Seed of the image noise.
        batch_size: Images in one forward pass.
    """

    images_per_prompt: int
    seed: int
    batch_size: int


def heldout_images(
    family: Family,
    times: Tensor,
    prompts: PromptSet,
    settings: HeldoutSettings,
    check: Check = never,
) -> NDArray[np.float32]:
    """Sample images [P * I, 3, H, W] of the current policy; I is `images_per_prompt`.

    The noise is the same in every iteration, so that the images are comparable.

    Args:
        family: Policy.
        times: Time grid [S + 1].
        prompts: P held-out prompts.
        settings: Sizes and seed.
        check: Called before each evaluation of the policy; raises to abort.

    Raises:
        DataError: A latent is not finite; the message names the prompt.
    """
    rows = prompts.repeated(settings.images_per_prompt)
    names = [f"{rows.ids[i]}/{i % settings.images_per_prompt}" for i in range(len(rows))]
    images = []
    for first in range(0, len(rows), settings.batch_size):
        span = range(first, min(first + settings.batch_size, len(rows)))
        noise = sample_noise(
            (len(span), *family.latent_shape), [generator("heldout", settings.seed, names[i]) for i in span]
        )
        part = rows.rows(span)
        velocity = velocity_function(Stoppable(family, check), part.conditioning)
        start = noise.to(part.conditioning.prompt_embeds.device)
        finals = rollout_ode(lambda _, v=velocity: v, start, times)[:, -1]  # type: ignore[misc]  # v bound early
        require_finite(finals, part, "held-out prompts", DIVERGED)
        images.append(family.decode(finals).cpu())
    return torch.cat(images).numpy()


def heldout_scores(
    images: NDArray[np.float32], prompts: PromptSet, reward: Reward, waiting: Check = never
) -> dict[str, NDArray[np.float64]]:
    """Score held-out images: values [P * I] by scorer.

    Args:
        images: [P * I, 3, H, W] in [0, 1]; the I images of a prompt are consecutive.
        prompts: P held-out prompts.
        reward: Scorers.
        waiting: Called while scoring runs; raises to abort.

    Raises:
        DataError: A score is not finite.
    """
    rows = prompts.repeated(len(images) // len(prompts))
    batch = ScoreBatch(as_pictures(images), rows.texts, rows.metadata, rows.groups())
    thread = Background("held-out reward")
    try:
        scores = waited(thread.submit(reward.scores, batch), waiting)
    except BaseException as error:
        thread.end(seconds_to_end(error))
        raise
    thread.end()
    return scores


@dataclass(frozen=True)
class HeldoutResult:
    """Result of one held-out evaluation.

    Attributes:
        metrics: Values by name.
        images: [P * I, 3, H, W] in [0, 1]; the I images of a prompt are consecutive.
        is_best: Whether the score is higher than all earlier ones.
    """

    metrics: dict[str, float]
    images: NDArray[np.float32]
    is_best: bool


class HeldoutEvaluation:
    """Evaluates successive policies on the same held-out prompts and noise."""

    def __init__(self, prompts: PromptSet, reward: Reward, unseen: Reward | None, train: TrainParams) -> None:
        """Start without evaluations.

        Args:
            prompts: P held-out prompts.
            reward: Training reward.
            unseen: Scorers of `train.heldout.scorers`, which training does not maximise; None: none are configured.
            train: `train` section of params.yaml.
        """
        settings = train.heldout
        self._prompts, self._reward, self._settings = prompts, reward, settings
        self._unseen = unseen if settings.scorers else None
        self._sampling = HeldoutSettings(settings.images_per_prompt, settings.seed, train.rollout_batch_size)
        self.best = BestScore()

    def evaluate(
        self, family: Family, times: Tensor, iteration: int, check: Check, waiting: Check = never
    ) -> HeldoutResult:
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
        images = heldout_images(family, times, self._prompts, self._sampling, check)
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
        return HeldoutResult(metrics, images, self.best.update(iteration, decisive))

    def should_stop(self) -> bool:
        """Whether the last `patience` evaluations brought no new best."""
        return self.best.should_stop(self._settings.patience)

    def state(self) -> dict[str, Any]:
        """State of the best score, for a checkpoint."""
        return self.best.state()

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`."""
        self.best = BestScore.from_state(state)
