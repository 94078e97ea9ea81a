"""Which scorer with which settings: what the stage check_scorers finds out and later stages score by.

A file of specs is what the cache looks at: as long as it stays the same, nothing is scored or trained anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chunk_grpo.config.scorers import AnyScorer, RefusingScorer
from chunk_grpo.errors import DataError
from chunk_grpo.scorers.base import Scorer
from chunk_grpo.scorers.identity import measured


@dataclass(frozen=True)
class ScorerSpec:
    """A scorer as params.yaml and the code have it.

    Attributes:
        key: Its name in params.yaml.
        name: What is measured, such as clip/openai/clip-vit-large-patch14.
        version: Of the code that measures it.
        hash: Of version, settings and model files.
        splits: Of the prompts whose images are scored.
        settings: Those that could move a score.
        refusals: Share of the images that may stay without a score.
    """

    key: str
    name: str
    version: int
    hash: str
    splits: tuple[str, ...]
    settings: Mapping[str, Any]
    refusals: float

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "key": self.key,
            "name": self.name,
            "version": self.version,
            "spec_hash": self.hash,
            "splits": list(self.splits),
            "settings": dict(self.settings),
            "refusals": self.refusals,
        }


def spec_of(key: str, settings: AnyScorer, scorer: Scorer) -> ScorerSpec:
    """What `scorer` is; reads its local model files in whole."""
    return ScorerSpec(
        key,
        scorer.name,
        scorer.version,
        scorer.spec_hash(),
        settings.splits,
        measured(settings),
        settings.refusals if isinstance(settings, RefusingScorer) else 0.0,
    )


def spec_from(record: Mapping[str, Any], source: str) -> ScorerSpec:
    """The spec that `to_json` wrote.

    Args:
        record: The JSON object.
        source: Its file, for messages.

    Raises:
        DataError: Something is missing or of another kind, for example after an update of this package.
    """
    try:
        return ScorerSpec(
            str(record["key"]),
            str(record["name"]),
            int(record["version"]),
            str(record["spec_hash"]),
            tuple(map(str, record["splits"])),
            dict(record["settings"]),
            float(record["refusals"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{source}: no spec of a scorer that this version reads ({type(error).__name__}: {error}). Run "
            "`dvc repro check_scorers`."
        ) from error


def require_same(spec: ScorerSpec, scorer: Scorer) -> None:
    """Refuse a scorer that is another one than was checked; reads its local model files in whole.

    Raises:
        DataError: Its name, version, settings or models differ.
    """
    found = (scorer.name, scorer.version)
    if found != (spec.name, spec.version):
        raise DataError(
            f"scorers.{spec.key}: is {found[0]} version {found[1]}, but was checked as {spec.name} version "
            f"{spec.version}; run `dvc repro`, which checks and scores again"
        )
    if scorer.spec_hash() != spec.hash:
        raise DataError(
            f"scorers.{spec.key}: settings or model files are others than those that were checked; run "
            "`dvc repro --force --single-item check_scorers`, then `dvc repro`"
        )
