"""GenEval's rules: whether the detections of an image match its prompt.

Reimplements evaluation/evaluate_images.py and evaluation/summary_scores.py of github.com/djghosh13/geneval (commit
af4902f). The tests run both on the same detections. Boxes and scores are float32 throughout, as in the original: some
decisions depend on the last bit.

Shape letters: N detections in an image, H height, W width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chunk_grpo.scorers.geneval.records import CLASS_NAMES, COLOURS, RELATIONS, TAGS, GenEvalRecord, Wanted

SAME_PLACE = 1e-3
"""Offset in pixels below which two objects have no relation."""

FAR_ENOUGH = 0.5
"""Minimum of the shortened offset over the distance of the centres, for a relation. At 45 degrees the ratio is 0.71."""

Found: TypeAlias = Mapping[str, Sequence[int]]
"""Class to detection numbers, most confident first."""

Asked: TypeAlias = tuple[str, int]
"""Class and number of a detection whose colour must be classified; the classifier's texts contain the class."""


@dataclass(frozen=True)
class Detections:
    """Detections of one image, unordered."""

    labels: NDArray[np.int64]
    """int64 [N], indices into CLASS_NAMES."""
    scores: NDArray[np.float32]
    """float32 [N], confidences in [0, 1]."""
    boxes: NDArray[np.float32]
    """float32 [N, 4]: left, top, right, bottom in pixels, right and bottom exclusive."""
    masks: NDArray[np.bool_]
    """Bool [N, H, W], True inside the object."""


@dataclass(frozen=True)
class Reason:
    """A clause that the image does not meet."""

    rule: Literal["include", "color", "position", "target", "exclude"]
    """Failed rule: `include` (too few objects), `color` (too few of the colour), `position` (wrong position),
    `target` (the clause that the position refers to failed), `exclude` (too many objects)."""
    class_name: str
    """Class of the clause."""
    expected: str
    """Value that the clause requires."""
    found: str
    """Value in the image."""

    def __str__(self) -> str:
        """The reason in one line."""
        return f"{self.class_name}: {self.rule} {self.expected}, found {self.found}"


@dataclass(frozen=True)
class Verdict:
    """Judgement of an image."""

    reasons: tuple[Reason, ...]
    """Unmet clauses in order; empty for a correct image."""
    num_objects: int
    """Number of counted detections, of all classes."""
    graded: float
    """Flow-GRPO's reward, at most 1 (`_graded`)."""

    @property
    def correct(self) -> bool:
        """Whether the image meets every clause."""
        return not self.reasons


def found_objects(detections: Detections, threshold: float, max_objects: int) -> dict[str, list[int]]:
    """Detections that count: above the threshold, at most the `max_objects` most confident of each class.

    Overlapping detections are all kept: the original's suppression is off at its default max_overlap of 1.

    Args:
        detections: Detections of one image.
        threshold: Exclusive lower bound of the scores; in the original 0.3, and 0.9 for the tag counting.
        max_objects: Maximum number of objects of a class; 16 in the original.

    Returns:
        Class to detection numbers, most confident first; classes without detections are left out.
    """
    # Reverse after a stable sort: of equal scores the later detection comes first, as in the original.
    order = np.argsort(detections.scores, kind="stable")[::-1]
    found: dict[str, list[int]] = {}
    for row in order[detections.scores[order] > np.float32(threshold)].tolist():
        found.setdefault(CLASS_NAMES[detections.labels[row]], []).append(row)
    return {name: rows[:max_objects] for name, rows in found.items()}


def relations(box: NDArray[np.float32], target: NDArray[np.float32], threshold: float) -> tuple[str, ...]:
    """Position of a box relative to another: none, one or two of RELATIONS.

    Each component (x, y) of the centres' offset is shortened by `threshold` times the sum of both boxes' sides along
    it, then divided by the distance of the centres. A component beyond 0.5 is a relation.

    Args:
        box: Box, float32 [4].
        target: Reference box, float32 [4].
        threshold: Share of the boxes' sides to subtract; 0.1 in the original.
    """
    box, target = box.reshape(2, 2), target.reshape(2, 2)  # corners, each x and y
    offset = box.mean(axis=0) - target.mean(axis=0)
    sides = np.abs(box[1] - box[0]) + np.abs(target[1] - target[0])
    left = np.sign(offset) * np.maximum(np.abs(offset) - threshold * sides, 0)
    if (np.abs(left) < SAME_PLACE).all():
        return ()
    x, y = left / np.linalg.norm(offset)
    holds = (x < -FAR_ENOUGH, x > FAR_ENOUGH, y < -FAR_ENOUGH, y > FAR_ENOUGH)
    return tuple(name for name, true in zip(RELATIONS, holds, strict=True) if true)


def asked_colours(record: GenEvalRecord, found: Found) -> list[Asked]:
    """Detections whose colour is needed: the most confident `count` of each clause with a colour and enough objects."""
    return [
        (wanted.class_name, row)
        for wanted in record.include
        if wanted.colour is not None and len(found.get(wanted.class_name, ())) >= wanted.count
        for row in found[wanted.class_name][: wanted.count]
    ]


def judge(
    record: GenEvalRecord,
    found: Found,
    boxes: NDArray[np.float32],
    colours: Mapping[Asked, str],
    position_threshold: float,
) -> Verdict:
    """Check the detections of an image against every clause.

    A clause's objects are the most confident `count` of its class. All must have the required relation to all objects
    of the clause it refers to. If that clause failed, this one fails too. Extra objects are allowed unless `exclude`
    limits them.

    Args:
        record: Record of the prompt.
        found: Output of `found_objects`.
        boxes: Boxes of the detections, float32 [N, 4].
        colours: Colour from COLOURS for each entry of `asked_colours`.
        position_threshold: `threshold` of `relations`.
    """
    reasons: list[Reason] = []
    met: list[Sequence[int] | None] = []
    for wanted in record.include:
        rows = found.get(wanted.class_name, ())[: wanted.count]
        reason = (
            _too_few(wanted, rows)
            or _other_colour(wanted, rows, colours)
            or _elsewhere(wanted, rows, met, boxes, position_threshold)
        )
        met.append(None if reason else rows)
        reasons += [reason] if reason else []
    for limit in record.exclude:
        count = len(found.get(limit.class_name, ()))
        if count >= limit.count:
            reasons.append(Reason("exclude", limit.class_name, f"fewer than {limit.count}", str(count)))
    count = sum(len(rows) for rows in found.values())
    return Verdict(tuple(reasons), count, _graded(record, found, boxes, colours, position_threshold))


def _graded(
    record: GenEvalRecord,
    found: Found,
    boxes: NDArray[np.float32],
    colours: Mapping[Asked, str],
    position_threshold: float,
) -> float:
    """Flow-GRPO's reward: the mean of a part for each number, colour and position that the record asks for.

    A number's part is 1 - |asked - found| / asked, which is negative for more than twice as many objects. A colour's
    part is the same of the objects with the colour. Colour and position count only with the exact number of objects,
    and a position only with the right colour. `exclude` is not read. As in the original, a wrong position adds a part
    of 0 and one of 1. The mean is at most 1, which every correct image without extra objects has.

    Source: evaluate_reward in reward_server/gen_eval.py of github.com/yifan123/reward-server, commit 7131478.
    """
    parts: list[float] = []
    met: list[Sequence[int] | None] = []
    for wanted in record.include:
        rows = found.get(wanted.class_name, ())
        parts.append(_closeness(wanted.count, len(rows)))
        right = len(rows) == wanted.count
        if not right and (wanted.colour is not None or wanted.position is not None):
            parts.append(0.0)
        if right and wanted.colour is not None:
            count = [colours[wanted.class_name, row] for row in rows].count(wanted.colour)
            parts.append(_closeness(wanted.count, count))
            right = count == wanted.count
        if right and wanted.position is not None:
            reason = _elsewhere(wanted, rows, met, boxes, position_threshold)
            right = reason is None
            parts += [1.0] if reason is None else [0.0] if reason.rule == "target" else [0.0, 1.0]
        met.append(rows if right else None)
    return sum(parts) / len(parts)


def _closeness(asked: int, found: int) -> float:
    return 1 - abs(asked - found) / asked


def _too_few(wanted: Wanted, rows: Sequence[int]) -> Reason | None:
    if len(rows) >= wanted.count:
        return None
    return Reason("include", wanted.class_name, str(wanted.count), str(len(rows)))


def _other_colour(wanted: Wanted, rows: Sequence[int], colours: Mapping[Asked, str]) -> Reason | None:
    if wanted.colour is None:
        return None
    seen = [colours[wanted.class_name, row] for row in rows]
    if seen.count(wanted.colour) >= wanted.count:
        return None
    found = ", ".join(f"{seen.count(colour)} {colour}" for colour in COLOURS if colour in seen)
    return Reason("color", wanted.class_name, f"{wanted.count} {wanted.colour}", found)


def _elsewhere(
    wanted: Wanted,
    rows: Sequence[int],
    met: Sequence[Sequence[int] | None],
    boxes: NDArray[np.float32],
    threshold: float,
) -> Reason | None:
    if wanted.position is None:
        return None
    relation, number = wanted.position
    targets = met[number]
    if targets is None:
        return Reason("target", wanted.class_name, relation, "no target")
    for row in rows:
        for target in targets:
            true = relations(boxes[row], boxes[target], threshold)
            if relation not in true:
                found = " and ".join(true) or "no relation"
                return Reason("position", wanted.class_name, relation, found)
    return None


def tag_means(tags: Sequence[str], values: NDArray[np.float64]) -> dict[str, float]:
    """Share of correct images of each present tag, in the order of TAGS.

    Args:
        tags: Tags of B images, from TAGS.
        values: float64 [B], 1 for a correct image, else 0.
    """
    column = np.array(tags)
    return {tag: float(values[column == tag].mean()) for tag in TAGS if tag in tags}


def overall(means: Mapping[str, float]) -> float:
    """GenEval's overall score: the unweighted mean of its six tags.

    Args:
        means: Output of `tag_means` for images of all six; KeyError without one, as the mean would be no GenEval score.
    """
    return float(np.mean([means[tag] for tag in TAGS]))
