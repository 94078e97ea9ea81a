"""Draw images, score them, compare policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from chunk_grpo.families.prompts import PromptSet
from chunk_grpo.generation import GenerationSettings, Mode
from chunk_grpo.image_files import encode_png, image_grid
from chunk_grpo.library.drawing import drawn
from chunk_grpo.library.model import Model
from chunk_grpo.library.scoring import scored
from chunk_grpo.library.training import Policy, RewardFunction, scorer_of
from chunk_grpo.parallel import Workers
from chunk_grpo.reporting.statistics import Interval, crossed_interval
from chunk_grpo.scorers.base import ScoreBatch


@dataclass(frozen=True)
class Images:
    """Images of P prompts."""

    pictures: NDArray[np.uint8]
    """uint8 [P, I, H, W, 3]."""
    prompts: PromptSet
    """The prompts."""

    def save_grid(self, path: str | Path) -> None:
        """Write a PNG with a row for each prompt."""
        flat = self.pictures.reshape(-1, *self.pictures.shape[2:])
        Path(path).write_bytes(encode_png(image_grid(list(flat), self.pictures.shape[1])))


def sample(
    model: Model,
    prompts: PromptSet,
    policy: Policy | str | Path | None = None,
    *,
    num_steps: int = 50,
    shift: float | None,
    base_steps: int = 0,
    images_per_prompt: int = 1,
    batch_size: int = 4,
    seed: int = 2000,
) -> Images:
    """Draw images by the ODE. All policies have the same noise for the same prompt and seed.

    Args:
        model: The base model.
        prompts: P prompts.
        policy: The trained policy, or its folder; None: the base model alone.
        num_steps: Number of ODE steps.
        shift: Shift of the time grid; None: the grid of diffusers' pipeline.
        base_steps: Last steps that the base model takes: hybrid inference (App. B.3), 20 of 50 in the paper.
        images_per_prompt: Images per prompt, I.
        batch_size: Images per forward pass.
        seed: Seed of the noise.

    Raises:
        DataError: A latent is not finite, or the folder holds no policy of this model.
    """
    settings = GenerationSettings(model.times(num_steps, shift), base_steps, images_per_prompt, batch_size, seed)
    wanted: Mode = "base" if policy is None else "hybrid" if base_steps else "tuned"
    folder = policy.folder if isinstance(policy, Policy) else policy
    tuned = None if folder is None else (lambda base: base.replaced_by(Path(folder)))
    images = drawn(model.base, tuned, prompts, settings, lambda image: image, Workers.alone())
    found = [image.picture for image in images if image.mode == wanted]
    pictures = np.stack(found)
    return Images(pictures.reshape(len(prompts), images_per_prompt, *pictures.shape[1:]), prompts)


def score(images: Images, reward: RewardFunction, batch_size: int = 64) -> NDArray[np.float64]:
    """Score images: [P, I], NaN for an image that the reward refuses.

    Args:
        images: Images of P prompts, I each.
        reward: A reward function, as for `train`, or a class.
        batch_size: Images per call.

    Raises:
        ConfigError: The function takes other arguments.
        DataError: A score is missing or not finite.
        TransientError: The reward does not answer.
    """
    count = images.pictures.shape[1]
    rows = images.prompts.repeated(count)
    flat = images.pictures.reshape(-1, *images.pictures.shape[2:])
    batch = ScoreBatch(flat, rows.texts, rows.metadata, rows.groups(), rows.sources(*flat.shape[1:3]))
    values = scored("reward", scorer_of("reward", reward, batch_size), batch).values
    return values.reshape(-1, count)


def compare(
    first: NDArray[np.float64] | Sequence[NDArray[np.float64]],
    second: NDArray[np.float64] | Sequence[NDArray[np.float64]],
    captions: Sequence[str] | None = None,
) -> Interval:
    """Mean difference of two policies, `first` minus `second`, with its 95 % interval, paired by prompt and noise.

    Args:
        first: Scores [P, I], or those of several training seeds.
        second: Scores of the policy that it is compared with, likewise; one policy is compared with every seed.
        captions: Texts of the prompts; prompts with the same text are no independent evidence. None: all differ.

    Raises:
        ValueError: The numbers of prompts, images or seeds do not match, or a score is not finite.
    """
    a, b = _by_seed(first), _by_seed(second)
    if a.shape[1] != b.shape[1] or (len(a) != len(b) and 1 not in (len(a), len(b))):
        raise ValueError(f"needs scores of the same prompts and seeds, got {a.shape} and {b.shape}")
    return crossed_interval(a - b, captions=captions)


def _by_seed(scores: NDArray[np.float64] | Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Means over the images of a prompt, [R, P]."""
    array = np.asarray(scores, dtype=np.float64)
    means: NDArray[np.float64] = (array if array.ndim == 3 else array[None]).mean(axis=2)
    return means
