"""GenEval's rules: is the picture, as a detector sees it, the one the prompt asks for?

Written anew from the rules of evaluation/evaluate_images.py and evaluation/summary_scores.py of
github.com/djghosh13/geneval (commit af4902f); the tests run both on the same detections. Boxes and scores are
float32 throughout, as there: some decisions hang on the last bit.

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
"""Offset in pixels below which there is no relation."""

FAR_ENOUGH = 0.5
"""Part of the distance of two centres that must be left of an offset for a relation: half a right angle has 0.71."""

Found: TypeAlias = Mapping[str, Sequence[int]]
"""Class to numbers of detections, the most confident first."""

Asked: TypeAlias = tuple[str, int]
"""Class, and number of a detection whose colour is asked for: the classifier is told the class."""


@dataclass(frozen=True)
class Detections:
    """What a detector found in one image, in no order.

    Attributes:
        labels: int64 [N], into CLASS_NAMES.
        scores: float32 [N], confidence in [0, 1].
        boxes: float32 [N, 4]: left, top, right, bottom in pixels, right and bottom exclusive.
        masks: bool [N, H, W].
    """

    labels: NDArray[np.int64]
    scores: NDArray[np.float32]
    boxes: NDArray[np.float32]
    masks: NDArray[np.bool_]


@dataclass(frozen=True)
class Reason:
    """A demand that is not met.

    Attributes:
        rule: `include`: too few objects; `color`: too few of the colour; `position`: elsewhere; `target`: nothing
            that a position could refer to; `exclude`: too many objects.
        class_name: Of the clause.
        expected: What the clause demands.
        found: What there is.
    """

    rule: Literal["include", "color", "position", "target", "exclude"]
    class_name: str
    expected: str
    found: str

    def __str__(self) -> str:
        """In one line."""
        return f"{self.class_name}: {self.rule} {self.expected}, found {self.found}"


@dataclass(frozen=True)
class Verdict:
    """Whether a picture is the one that its prompt asks for.

    Attributes:
        reasons: Why not, in the order of the clauses; empty for a correct picture.
        num_objects: Detections that counted, of all classes.
    """

    reasons: tuple[Reason, ...]
    num_objects: int

    @property
    def correct(self) -> bool:
        """Every demand is met."""
        return not self.reasons


def found_objects(detections: Detections, threshold: float, max_objects: int) -> dict[str, list[int]]:
    """The detections that count: above the threshold, the most confident `max_objects` of each class.

    Overlapping ones all stay: the original's suppression is off at its default max_overlap of 1.

    Args:
        detections: Of one image.
        threshold: Scores must be greater; 0.3, and 0.9 for prompts of the tag counting, in the original.
        max_objects: 16 in the original.

    Returns:
        Class to numbers of detections, the most confident first; classes without any are left out.
    """
    # Reversed after sorting, so that of equal scores the later detection comes first, as in the original.
    order = np.argsort(detections.scores, kind="stable")[::-1]
    found: dict[str, list[int]] = {}
    for row in order[detections.scores[order] > np.float32(threshold)].tolist():
        found.setdefault(CLASS_NAMES[detections.labels[row]], []).append(row)
    return {name: rows[:max_objects] for name, rows in found.items()}


def relations(box: NDArray[np.float32], target: NDArray[np.float32], threshold: float) -> tuple[str, ...]:
    """Where a box lies, seen from another: none, one or two of RELATIONS.

    Centres' offset (x, y), each shortened by `threshold` times the sum of both boxes' sides along it, and divided by
    the distance of the centres: a component beyond 0.5 is a relation.

    Args:
        box: float32 [4].
        target: float32 [4].
        threshold: 0.1 in the original.
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
    """The detections whose colour decides: the most confident ones of each clause with a colour and enough objects."""
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
    """Hold what was found against every clause.

    A clause's objects are the most confident `count` of its class. All must lie in the demanded relation to all
    objects of the clause it refers to; if that clause failed, so does this one. Extra objects are no fault unless
    `exclude` limits them.

    Args:
        record: The prompt's.
        found: From `found_objects`.
        boxes: float32 [N, 4], of the detections.
        colours: One of COLOURS for each of `asked_colours`.
        position_threshold: As in `relations`.
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
    return Verdict(tuple(reasons), sum(len(rows) for rows in found.values()))


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
    """Part of the images that are correct, for each tag that there is, in the order of TAGS.

    Args:
        tags: Of B images, from TAGS.
        values: float64 [B], 1 for a correct image, else 0.

    Raises:
        ValueError: A tag is none of GenEval's, or there are not as many tags as values.
    """
    if len(tags) != len(values):
        raise ValueError(f"tags: needs one for each of {len(values)} images, got {len(tags)}")
    if foreign := set(tags) - set(TAGS):
        raise ValueError(f"tags: must be of {', '.join(TAGS)}; got {', '.join(sorted(foreign))}")
    column = np.array(tags)
    return {tag: float(values[column == tag].mean()) for tag in TAGS if tag in tags}


def overall(means: Mapping[str, float]) -> float:
    """GenEval's one number: the plain mean of its six tags, however many prompts each has.

    Args:
        means: From `tag_means`.

    Raises:
        ValueError: A tag is missing: without it, the number is no GenEval score.
    """
    if missing := [tag for tag in TAGS if tag not in means]:
        raise ValueError(f"Overall needs images of all six tags; none of {', '.join(missing)}")
    return float(np.mean([means[tag] for tag in TAGS]))
