"""Which scorer with which settings: what the stage check_scorers finds out and later stages score by.

A file of specs is what the cache looks at: as long as it stays the same, nothing is scored or trained anew.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from chunk_grpo.config.scorers import AnyScorer
from chunk_grpo.errors import DataError
from chunk_grpo.scorers.base import Scorer

_SETTINGS: TypeAdapter[AnyScorer] = TypeAdapter(AnyScorer)


@dataclass(frozen=True)
class ScorerSpec:
    """A scorer as params.yaml and the code have it.

    Attributes:
        key: Its name in params.yaml.
        settings: Its section.
        name: What is measured, such as clip/openai/clip-vit-large-patch14.
        version: Of the code that measures it.
        hash: Of version, settings and model files.
    """

    key: str
    settings: AnyScorer
    name: str
    version: int
    hash: str

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "key": self.key,
            "name": self.name,
            "version": self.version,
            "spec_hash": self.hash,
            "settings": self.settings.model_dump(mode="json"),
        }


def spec_of(key: str, settings: AnyScorer, scorer: Scorer) -> ScorerSpec:
    """What `scorer` is; reads its local model files in whole."""
    return ScorerSpec(key, settings, scorer.name, scorer.version, scorer.spec_hash())


def spec_from(record: Mapping[str, Any], source: str) -> ScorerSpec:
    """The spec that `to_json` wrote.

    Args:
        record: The JSON object.
        source: Its file, for messages.

    Raises:
        DataError: Something is missing or of another kind, for example after an update of this package.
    """
    try:
        settings = _SETTINGS.validate_json(json.dumps(record["settings"]))
        return ScorerSpec(
            str(record["key"]),
            settings,
            str(record["name"]),
            int(record["version"]),
            str(record["spec_hash"]),
        )
    except (KeyError, TypeError, ValueError, ValidationError) as error:
        raise DataError(
            f"{source}: no spec of a scorer that this version reads ({error}). Run `dvc repro check_scorers`."
        ) from error


def require_same(spec: ScorerSpec, scorer: Scorer) -> None:
    """Refuse a scorer that is another one than was checked.

    Raises:
        DataError: Its name or version differs.
    """
    found = (scorer.name, scorer.version)
    if found != (spec.name, spec.version):
        raise DataError(
            f"scorers.{spec.key}: is {found[0]} version {found[1]}, but was checked as {spec.name} version "
            f"{spec.version}; run `dvc repro`, which checks and scores again"
        )
