"""Memory of the scorers on the card, and operations an image, by the network that each kind declares.

Networks that are not known are named by the plan. Activations are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from chunk_grpo.config import Params
from chunk_grpo.config.scorers import InProcess, InSubprocess
from chunk_grpo.planning.settings import ELEMENT


@dataclass(frozen=True)
class Scoring:
    """Scorers of one use."""

    bytes: float
    """Weights on the training card."""
    flop: float
    """Operations an image of the counted ones."""
    not_counted: tuple[str, ...]
    """Names whose memory or operations are not known."""


def scoring(params: Params, names: tuple[str, ...]) -> Scoring:
    """Memory and operations of these scorers, each in the process of the stage or beside it on its card."""
    found, flop, unknown = 0.0, 0.0, []
    for name in names:
        settings = params.scorers[name]
        if is_here(params, name) and settings.NETWORK is None:
            unknown.append(name)
        elif is_here(params, name) and settings.NETWORK is not None:
            found += settings.NETWORK.weights * ELEMENT[getattr(settings, "dtype", "float32")]
            flop += settings.NETWORK.flop
    return Scoring(found, flop, tuple(unknown))


def in_process(params: Params, name: str) -> bool:
    """Whether a scorer is in the stage's process."""
    executor = params.executors.get(name)
    return executor is None or isinstance(executor, InProcess)


def is_here(params: Params, name: str) -> bool:
    """Whether a scorer takes memory of the stage's card: in its process, or in one beside it without a device."""
    executor = params.executors.get(name)
    if executor is None:
        return True
    if isinstance(executor, (InProcess, InSubprocess)):
        return executor.device is None
    return False
