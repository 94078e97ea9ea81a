"""What every section of params.yaml is made of: the strict base model and the types that several sections use."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PositiveFloat

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$", max_length=40)]
"""A name that becomes part of a file name and of a DVC stage name."""

Text = Annotated[str, Field(min_length=1)]
Fraction = Annotated[float, Field(gt=0, le=1)]
ClipRange = Annotated[float, Field(gt=0, lt=1)]
Mix = Annotated[dict[str, PositiveFloat], AfterValidator(lambda mix: dict(sorted(mix.items())))]
"""Scorer to weight, by name: DVC does not see the order of keys, so it must not move a sum's last digits."""

NumSteps = Annotated[int, Field(ge=2, le=1000)]

Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]
"""Tables hold seeds as int64."""

# The bounds below are far above what is of use: they find a slip of the keyboard before it costs memory or hours.
Side = Annotated[int, Field(ge=8, le=4096, multiple_of=8)]
BatchSize = Annotated[int, Field(ge=1, le=65_536)]
PromptCount = Annotated[int, Field(ge=1, le=1_000_000)]
ImageCount = Annotated[int, Field(ge=1, le=10_000)]

# Outside of these the time grid collapses or the noise overflows float32.
Shift = Annotated[float, Field(ge=0.001, le=1000)]
Eta = Annotated[float, Field(ge=0.001, le=10)]


class Section(BaseModel):
    """Frozen, refuses unknown keys, and converts nothing: `"2"` is no number and `true` is no 1."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
