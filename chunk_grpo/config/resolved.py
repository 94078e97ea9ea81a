"""Variants with the values of `train` and `sampling` where they have none of their own."""

from __future__ import annotations

from pydantic import NonNegativeFloat, PositiveFloat

from chunk_grpo.config.models import Params, SamplingParams
from chunk_grpo.config.section import ClipRange, Eta, Fraction
from chunk_grpo.config.training import TrainParams
from chunk_grpo.config.variants import VariantParams
from chunk_grpo.core.choices import Sde


class ResolvedVariant(VariantParams):
    """A variant that leaves nothing to `train` and `sampling`."""

    fraction: Fraction
    """Share of the chunks selected per sample and update."""
    clip_range: ClipRange
    """Clip range of all chunks, if `clip_ranges` is null."""
    kl_coef: NonNegativeFloat
    """KL coefficient."""
    learning_rate: PositiveFloat
    """Learning rate of the optimiser."""
    sde: Sde
    """Kind of noise of a step."""
    eta: Eta
    """Scale of the noise."""

    @property
    def limits(self) -> tuple[float, ...]:
        """Clip ranges: one for all chunks, or one for each."""
        return self.clip_ranges or (self.clip_range,)

    @property
    def has_reference(self) -> bool:
        """Whether the objective has a KL divergence, or gets one from the controller when a held-out score falls."""
        return self.kl_coef > 0 or self.controlled


def resolve(own: VariantParams, sampling: SamplingParams, train: TrainParams) -> ResolvedVariant:
    """A variant's own values, and where one is null that of `train` or `sampling`."""
    shared = {
        "fraction": train.fraction,
        "clip_range": train.clip_range,
        "kl_coef": train.kl_coef,
        "learning_rate": train.learning_rate,
        "sde": sampling.sde,
        "eta": sampling.eta,
    }
    values = dict(own)
    return ResolvedVariant(**values | {key: value for key, value in shared.items() if values[key] is None})


def resolved_variant(params: Params, name: str) -> ResolvedVariant:
    """`resolve` for a variant of params.yaml."""
    return resolve(params.variants[name], params.sampling, params.train)
