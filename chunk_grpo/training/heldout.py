"""Held-out evaluation while training: ODE samples of held-out prompts with fixed noise, and their scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
from chunk_grpo.scorers.running.retry import Background, waited
from chunk_grpo.seeding import generator
from chunk_grpo.training.image_statistics import image_statistics
from chunk_grpo.training.processes import Processes
from chunk_grpo.training.rollouts import DIVERGED
from chunk_grpo.training.scoring import Waits
from chunk_grpo.training.stopping import Check, Stoppable, never, seconds_to_end

PICTURES_SHOWN = 16
"""Images of an evaluation that trackers get."""


def heldout_images(
    family: Family,
    times: Tensor,
    prompts: PromptSet,
    settings: TrainParams,
    check: Check = never,
    share: Sequence[int] | None = None,
) -> NDArray[np.float32]:
    """Sample images [P * I, 3, H, W] of the current policy; I is `heldout.images_per_prompt`.

    The noise is the same in every iteration, so that the images are comparable.

    Args:
        family: Policy.
        times: Time grid [S + 1].
        prompts: P held-out prompts.
        settings: `train` section of params.yaml.
        check: Called before each evaluation of the policy; raises to abort.
        share: Rows to sample; None: all.

    Raises:
        DataError: A latent is not finite; the message names the prompt.
    """
    number, seed = settings.heldout.images_per_prompt, settings.heldout.seed
    batch_size = settings.rollout_batch_size
    rows = prompts.repeated(number)
    names = [f"{rows.ids[i]}/{i % number}" for i in range(len(rows))]
    wanted = range(len(rows)) if share is None else share
    images = []
    for first in range(0, len(wanted), batch_size):
        span = wanted[first : first + batch_size]
        noise = sample_noise((len(span), *family.latent_shape), [generator("heldout", seed, names[i]) for i in span])
        part = rows.rows(span)
        velocity = velocity_function(Stoppable(family, check), part.conditioning.to(family.device))
        start = noise.to(family.device)
        finals = rollout_ode(lambda _, v=velocity: v, start, times)[:, -1]  # type: ignore[misc]  # v bound early
        require_finite(finals, part, "held-out prompts", DIVERGED)
        images += [family.decode(few).cpu() for few in finals.split(settings.micro_batch_size)]
    return torch.cat(images).numpy()


def heldout_scores(
    images: NDArray[np.float32], rows: PromptSet, reward: Reward, check: Check = never
) -> dict[str, NDArray[np.float64]]:
    """Score held-out images: values [B] by scorer; empty without images.

    Args:
        images: [B, 3, H, W] in [0, 1].
        rows: Prompt of each image.
        reward: Scorers.
        check: Called while scoring runs; raises to abort.

    Raises:
        DataError: A score is not finite.
    """
    if not len(images):
        return {}
    sources = rows.sources(*images.shape[2:])
    batch = ScoreBatch(as_pictures(images), rows.texts, rows.metadata, rows.groups(), sources)
    thread = Background("held-out reward")
    try:
        scores = waited(thread.submit(reward.scores, batch), check)
    except BaseException as error:
        thread.end(seconds_to_end(error))
        raise
    thread.end()
    return scores


@dataclass(frozen=True)
class HeldoutResult:
    """Result of one held-out evaluation."""

    metrics: dict[str, float]
    """Values by name."""
    pictures: NDArray[np.uint8]
    """The first images [N, H, W, 3], at most 16; [N, H, 2 W, 3] where each edits a picture, which is left of it."""
    decisive: float
    """Score of the first scorer that is not trained on; without any, the reward."""


class HeldoutEvaluation:
    """Evaluates successive policies on the same held-out prompts and noise."""

    def __init__(
        self, prompts: PromptSet, reward: Reward, unseen: Reward | None, settings: TrainParams, processes: Processes
    ) -> None:
        """Keep prompts and scorers.

        Args:
            prompts: P held-out prompts.
            reward: Training reward.
            unseen: Scorers of `train.heldout.scorers`, which training does not maximise; None: none are configured.
            settings: `train` section of params.yaml.
            processes: Processes that share the images.
        """
        self._prompts, self._reward, self._settings, self._processes = prompts, reward, settings, processes
        self._unseen = unseen if settings.heldout.scorers else None

    def evaluate(self, family: Family, times: Tensor, check: Check, waits: Waits) -> HeldoutResult:
        """Sample the policy's held-out images, score them and compute their statistics.

        Args:
            family: Policy.
            times: Time grid [S + 1].
            check: Called before each evaluation of the policy; raises to abort.
            waits: How the process waits for its scores.

        Raises:
            DataError: A latent or a score is not finite.
            UnscoredError: A scorer was away for too long, in this process or another.
            GivenUpError: A stop was requested.
        """
        rows = self._prompts.repeated(self._settings.heldout.images_per_prompt)
        share, count = self._processes.padded_share(len(rows))
        own = heldout_images(family, times, self._prompts, self._settings, check, share)[:count]

        def scores_of(reward: Reward) -> dict[str, NDArray[np.float64]]:
            """Values [P * I] by scorer; each process scores its own images."""
            found = waits.together(lambda: heldout_scores(own, rows.rows(share[:count]), reward, waits.check))
            everybody = self._processes.gather([found])
            return {name: np.concatenate([part[name] for part in everybody if part]) for name in everybody[0]}

        images = np.concatenate(self._processes.gather([own]))
        scores = scores_of(self._reward)
        metrics = {"heldout_reward": float(weighted_sum(scores, self._reward.weights).mean())}
        metrics |= {f"heldout/{name}": float(values.mean()) for name, values in scores.items()}
        decisive = metrics["heldout_reward"]
        if self._unseen is not None:
            unseen = scores_of(self._unseen)
            metrics |= {f"heldout/{name}": float(values.mean()) for name, values in unseen.items()}
            decisive = metrics[f"heldout/{self._settings.heldout.scorers[0]}"]
        statistics = image_statistics(images, self._settings.heldout.images_per_prompt)
        metrics |= {f"heldout_images/{name}": value for name, value in statistics.items()}
        return HeldoutResult(metrics, self._shown(images[:PICTURES_SHOWN]), decisive)

    def _shown(self, images: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Pictures of the first images [N, 3, H, W], beside those that were edited."""
        number = self._settings.heldout.images_per_prompt
        sources = self._prompts.rows([i // number for i in range(len(images))]).sources(*images.shape[2:])
        shown = as_pictures(images)
        return shown if sources is None else np.concatenate([sources, shown], axis=2)
