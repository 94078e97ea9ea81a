"""Checks that a built-in or external scorer satisfies the Scorer protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import get_args

import numpy as np

from chunk_grpo.errors import DataError, TransientError
from chunk_grpo.scorers.base import FloatArray, Need, ScoreBatch, Scorer, Scores, check_batch, check_scores

TOLERANCE = 1e-4
"""Tolerance between values: relative above 1, absolute below. Rounding may depend on the batch size."""


def check_contract(scorer: Scorer, batch: ScoreBatch, tolerance: float = TOLERANCE) -> None:
    """Score a batch in several ways and check the answers against the protocol.

    Use images and prompts that score differently; with equal scores a wrong order cannot be detected.

    Args:
        scorer: Scorer to check; its model is loaded.
        batch: At least 3 images; for a groupwise scorer at least 2 groups.
        tolerance: Allowed difference of values, as `TOLERANCE`.

    Raises:
        DataError: A rule is broken; the message begins with the rule. Or the batch does not allow the check.
        ValueError: The parts of the batch do not match.
    """
    check_batch(batch)
    if len(batch) < 3:
        raise DataError(f"contract: needs at least 3 images, got {len(batch)}")
    scorer.check()
    _check_identity(scorer)
    images = batch.images.copy()
    first = check_scores(scorer.name, scorer.score(batch), batch.prompts)
    if first.refused:
        row, reason = next(iter(first.refused.items()))
        raise DataError(
            f"contract: scorer {scorer.name} refuses image {row} ({reason}); use images and prompts that it judges"
        )
    if not np.array_equal(images, batch.images):
        raise DataError(f"leaves the images alone: scorer {scorer.name} wrote into the batch's images")
    if np.ptp(first.values) <= tolerance * max(1.0, float(np.abs(first.values).max())):
        raise DataError(
            f"contract: scorer {scorer.name} gives all {len(batch)} images {first.values[0]}, so a wrong order cannot "
            "be detected; use images and prompts that score differently"
        )
    every = list(range(len(batch)))
    for rule, parts in _rules(scorer.groupwise, batch.groups, every).items():
        for rows in parts:
            part = batch.rows(rows)
            scores = check_scores(scorer.name, scorer.score(part), part.prompts)
            _compare(f"{rule}: scorer {scorer.name}", first, scores, rows, tolerance)
    _check_empty(scorer, batch.rows([]))


def _rules(groupwise: bool, groups: Sequence[int], every: Sequence[int]) -> Mapping[str, list[Sequence[int]]]:
    """Rule to the rows of batches that must score as in the whole batch."""
    count = len(every)
    orders = [
        every[::-1],
        [*every[1:], 0],
    ]  # both: one order alone would miss a scorer that reverses, or rotates, its answers
    rules: dict[str, list[Sequence[int]]] = {"same answer twice": [every], "independent of the order": orders}
    if groupwise:
        alone = [[row for row in every if groups[row] == group] for group in dict.fromkeys(groups)]
        rules["independent of other groups"] = list(alone)
    else:
        alone = [[row] for row in every]
        rules["independent of the other images"] = [*alone, every[: count // 2]]
    return rules


def _check_empty(scorer: Scorer, empty: ScoreBatch) -> None:
    try:
        scores = scorer.score(empty)
    except TransientError:
        raise
    except Exception as error:  # any error breaks the rule
        raise DataError(
            f"a batch of any size: scorer {scorer.name} fails without images ({type(error).__name__}: {error})"
        ) from error
    check_scores(scorer.name, scores, [])


def _check_identity(scorer: Scorer) -> None:
    if not scorer.name:
        raise DataError("has a name: got an empty one")
    if scorer.version < 1:
        raise DataError(f"version is at least 1: scorer {scorer.name} has {scorer.version}")
    unknown = sorted(scorer.needs - set(get_args(Need)))
    if unknown:
        raise DataError(f"needs are {' and '.join(get_args(Need))}: scorer {scorer.name} has {', '.join(unknown)}")
    first, second = scorer.spec_hash(), scorer.spec_hash()
    if not first or first != second:
        raise DataError(f"one identity: scorer {scorer.name} has the spec hash {first!r}, and then {second!r}")


def _compare(what: str, whole: Scores, part: Scores, rows: Sequence[int], tolerance: float) -> None:
    if set(whole.details) != set(part.details):
        raise DataError(f"{what} gives details {sorted(part.details)} after {sorted(whole.details)}")
    _compare_values(what, whole.values, part.values, rows, tolerance)
    for name, values in whole.details.items():
        _compare_values(f"{what}, detail {name}", values, part.details[name], rows, tolerance)


def _compare_values(what: str, whole: FloatArray, part: FloatArray, rows: Sequence[int], tolerance: float) -> None:
    before = whole[list(rows)]
    off = np.abs(part - before) > tolerance * np.maximum(1.0, np.abs(before))
    if off.any():
        at = int(np.flatnonzero(off)[0])
        raise DataError(
            f"{what} gave image {rows[at]} {float(before[at])!r} among all {len(whole)} images in their order, and "
            f"{float(part[at])!r} as number {at} of {len(rows)}"
        )
