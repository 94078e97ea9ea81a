"""Data of the prompts that scorers need, such as the text that an image should show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from chunk_grpo.config import Params
from chunk_grpo.config.scorer_settings import ScorerSettings
from chunk_grpo.errors import DataError
from chunk_grpo.prompts.rows import SHOWN
from chunk_grpo.prompts.splits import Split


def data_needs(params: Params) -> dict[str, Any]:
    """Scorers that need data of the prompts: kind, settings that name the data, and splits.

    The stage prepare_prompts depends on them, not on all settings of scorers.
    """
    return {
        name: {
            "kind": settings.kind,
            **{field: getattr(settings, field) for field in settings.DATA_FIELDS},
            "splits": sorted(_splits(params, name)),
        }
        for name, settings in params.scorers.items()
        if settings.DATA_FIELDS
    }


def check_scorer_data(params: Params, splits: Sequence[Split]) -> None:
    """Check that every prompt has the data of each scorer that will judge its images.

    The error lists up to 20 prompts with file and line.
    """
    for name, settings in params.scorers.items():
        if settings.DATA_FIELDS:
            judged = _splits(params, name)
            faults = [fault for split in splits if split.name in judged for fault in _faults(settings, split)]
            _refuse(f"scorers.{name}", faults)


def _splits(params: Params, name: str) -> set[str]:
    """Splits that a scorer judges, in training and evaluation."""
    trained = {"train"} if name in params.rewards else set()
    watched = {"eval"} if name in (*params.rewards, *params.train.heldout.scorers) else set()
    return {*params.scorers[name].splits, *trained, *watched}


def _faults(settings: ScorerSettings, split: Split) -> Iterator[str]:
    unit = split.report.unit if split.report else "prompt"
    for row in split.rows:
        try:
            settings.check_data(row.text, row.metadata)
        except ValueError as error:
            yield f"  {row.source}, {unit} {row.line}: {error}"


def _refuse(key: str, faults: Sequence[str]) -> None:
    if not faults:
        return
    more = [f"  and {len(faults) - SHOWN} more"] if len(faults) > SHOWN else []
    head = f"{key}: {len(faults)} prompt{'s' if len(faults) > 1 else ''} cannot be judged"
    raise DataError("\n".join([head, *faults[:SHOWN], *more]))
