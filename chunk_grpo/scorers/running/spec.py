"""Scorer specs: identity and settings of scorers, written by the stage check_scorers and read by later stages.

DVC's cache depends on the file of specs. While it is unchanged, no scoring or training reruns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from chunk_grpo.config.scorer_settings import RefusingScorer
from chunk_grpo.config.scorers import AnyScorer
from chunk_grpo.errors import DataError
from chunk_grpo.scorers.base import Scorer
from chunk_grpo.scorers.running.fingerprint import scoring_settings


class ScorerSpec(BaseModel, frozen=True):
    """Identity and settings of a scorer."""

    key: str
    """Name of the scorer in params.yaml."""
    name: str
    """Name of the measure and its model, such as clip/openai/clip-vit-large-patch14."""
    version: int
    """Version of the scoring code."""
    spec_hash: str
    """Hash of version, settings and model files."""
    splits: tuple[str, ...]
    """Prompt splits whose images are scored."""
    settings: dict[str, Any]
    """Settings that could change a score."""
    refusals: float
    """Maximum share of images without a score."""


def spec_of(key: str, settings: AnyScorer, scorer: Scorer) -> ScorerSpec:
    """Spec of `scorer`. Reads its local model files completely."""
    return ScorerSpec(
        key=key,
        name=scorer.name,
        version=scorer.version,
        spec_hash=scorer.spec_hash(),
        splits=settings.splits,
        settings=scoring_settings(settings),
        refusals=settings.refusals if isinstance(settings, RefusingScorer) else 0.0,
    )


def spec_from(record: Mapping[str, Any], source: str) -> ScorerSpec:
    """Parse a spec of the file `source`; DataError if it has another form, as after an update of this package."""
    try:
        return ScorerSpec.model_validate(record)
    except ValidationError as error:
        raise DataError(
            f"{source}: this version cannot read the scorer spec ({error}). Run `dvc repro check_scorers`."
        ) from error


def require_same(spec: ScorerSpec, scorer: Scorer) -> None:
    """Check that a scorer matches its spec; else DataError. Reads its local model files completely."""
    found = (scorer.name, scorer.version)
    if found != (spec.name, spec.version):
        raise DataError(
            f"scorers.{spec.key}: is {found[0]} version {found[1]}, but was checked as {spec.name} version "
            f"{spec.version}; run `dvc repro`, which checks and scores again"
        )
    if scorer.spec_hash() != spec.spec_hash:
        raise DataError(
            f"scorers.{spec.key}: settings or model files differ from those that were checked; run "
            "`dvc repro --force --single-item check_scorers`, then `dvc repro`"
        )
