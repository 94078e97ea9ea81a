"""Strict base model of the sections of params.yaml, and field types shared by several sections."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PositiveFloat

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$", max_length=40)]
"""Name used in file names and DVC stage names."""

Text = Annotated[str, Field(min_length=1)]
Fraction = Annotated[float, Field(gt=0, le=1)]
Share = Annotated[float, Field(gt=0, lt=1)]
ClipRange = Annotated[float, Field(gt=0, lt=1)]
Mix = Annotated[dict[str, PositiveFloat], AfterValidator(lambda mix: dict(sorted(mix.items())))]
"""Scorer name to weight, sorted: DVC ignores the order of keys, so the order must not change a sum's rounding."""

NumSteps = Annotated[int, Field(ge=2, le=1000)]

Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]
"""Tables hold seeds as int64."""

# The bounds are far above useful values; they catch typing errors before they cost memory or hours.
Side = Annotated[int, Field(ge=8, le=4096, multiple_of=8)]
BatchSize = Annotated[int, Field(ge=1, le=65_536)]
PromptCount = Annotated[int, Field(ge=1, le=1_000_000)]
ImageCount = Annotated[int, Field(ge=1, le=10_000)]

# Outside these ranges the time grid collapses or the noise overflows float32.
Shift = Annotated[float, Field(ge=0.001, le=1000)]
CfgScale = Annotated[float, Field(ge=1, le=100)]
Eta = Annotated[float, Field(ge=0.001, le=10)]


class Section(BaseModel):
    """Frozen model without unknown keys or type conversion: `"2"` is not a number and `true` is not 1."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
