"""What training changes: weights, optimiser and averages, as one state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from chunk_grpo.config import TrainParams
from chunk_grpo.errors import DataError
from chunk_grpo.families.base import Conditioning, Family, Spread, TuningOptions
from chunk_grpo.seeding import derive_seed
from chunk_grpo.training.ema import ExponentialMovingAverage
from chunk_grpo.training.learner import Learner

VelocityFunction = Callable[[Tensor, Tensor, Conditioning], Tensor]
"""`VelocityModel.velocity`."""


class Trained:
    """The trained weights with their optimiser and averages.

    Args:
        family: The policy.
        learner: Its optimiser.
        average: Averages of its weights, or None.
    """

    def __init__(self, family: Family, learner: Learner, average: ExponentialMovingAverage | None) -> None:
        self._family, self._learner, self._average = family, learner, average

    def state(self) -> dict[str, Any]:
        """Weights, state of the optimiser and averages, which the next update changes in place."""
        return {
            "network": self._family.trainable_state(),
            "optimizer": self._learner.optimizer_state(),
            "average": None if self._average is None else self._average.state(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`. The optimiser keeps the given tensors."""
        self._family.load_trainable_state(state["network"])
        self._learner.load_optimizer(state["optimizer"])
        if self._average is not None:
            self._average.load_state(state["average"])


def prepared(
    family: Family,
    settings: TrainParams,
    seed: int,
    spread: Spread | None,
    start: Path | None,
    *,
    has_reference: bool,
) -> VelocityFunction | None:
    """Prepare the family for training, and return the velocity of the reference policy, the base model.

    Args:
        family: The base model.
        settings: Section `train` of params.yaml.
        seed: Training seed, of an adapter's initial weights.
        spread: Function that shards the weights.
        start: Saved policy with whose weights training starts; None: the base model's.
        has_reference: Whether a reference policy is needed.

    Raises:
        ConfigError: The settings do not match the model, or `start` is a transformer where an adapter is trained.
        DataError: `start` does not have the trained weights.
    """
    options = tuning_of(settings)
    state = None if start is None else family.start_state(start, options)
    family.prepare_training(options, derive_seed("adapter", seed), spread)
    reference = family.reference().velocity if has_reference else None
    if state is not None:
        try:
            family.load_trainable_state(state)
        except DataError as error:
            raise DataError(
                f"train.start_from: {start}: must have the weights that are trained; an adapter has the rank and the "
                f"targets of train.lora. {error}"
            ) from error
    return reference


def copied(value: Any) -> Any:
    """A copy of nested dicts and lists with tensors, in the CPU's memory."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: copied(held) for key, held in value.items()}
    return [copied(held) for held in value] if isinstance(value, list) else value


def tuning_of(settings: TrainParams) -> TuningOptions:
    """Options of `Family.prepare_training`."""
    lora = settings.lora
    return TuningOptions(
        lora_rank=None if lora is None else lora.rank,
        lora_alpha=1.0 if lora is None else lora.alpha,
        lora_targets=() if lora is None else lora.targets,
        gradient_checkpointing=settings.gradient_checkpointing,
        autocast=None,
        compiles=settings.compile,
    )
