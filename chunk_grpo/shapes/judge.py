"""Scores of an image: GenEval's exact rules, a smooth grade of the same demands, and vividness."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from chunk_grpo.shapes.detect import MIN_CONFIDENCE, Detection
from chunk_grpo.shapes.prompts import PLURALS, Demand, PromptSpec
from chunk_grpo.shapes.scene import COLOURS, SHAPES

POSITION_MARGIN = 0.1
"""GenEval's margin: fraction of the two boxes' summed sides that is subtracted from offsets."""

CLUTTER_FACTOR = 0.9
"""Factor of a grade for each thing too many."""


def exact_score(detections: list[Detection], spec: PromptSpec) -> bool:
    """Whether every demand is met by confident detections, by the rules of GenEval's evaluator."""
    return broken_rule(detections, spec) is None


def broken_rule(detections: list[Detection], spec: PromptSpec) -> str | None:
    """The first rule of `exact_score` that an image breaks, in words; None if it breaks no rule."""
    sure = [d for d in detections if d.confidence >= MIN_CONFIDENCE]
    matches = [[d for d in sure if _matches(d, demand)] for demand in spec.demands]
    for demand, found in zip(spec.demands, matches, strict=True):
        same = [d for d in sure if d.shape == demand.shape]
        if len(found) < demand.count:
            return _lacking(demand, len(found), same, detections)
        if demand.relation and not any(_holds(demand.relation, a, b) for a in found for b in matches[0]):
            return f"{demand.shape} not {demand.relation} {spec.demands[0].shape}"
        if spec.exact and len(same) > demand.count:
            return _miscounted(demand, len(same))
    return None


def _lacking(demand: Demand, count: int, same: list[Detection], detections: list[Detection]) -> str:
    """Why too few objects match a demand; `same` has the confident detections of its shape."""
    if len(same) >= demand.count:
        colours = dict.fromkeys(d.colour for d in same if d.colour != demand.colour)
        return f"colour of {demand.shape} read as {', '.join(colours)}"
    if demand.count > 1:
        return _miscounted(demand, count)
    if any(d.shape == demand.shape for d in detections):
        return f"outline of {demand.shape} unclear"
    shapes = ", ".join(d.shape for d in detections)
    return f"no {demand.shape}: {f'read as {shapes}' if shapes else 'nothing found'}"


def _miscounted(demand: Demand, count: int) -> str:
    return f"{count} {demand.shape if count == 1 else PLURALS[demand.shape]}, not {demand.count}"


def _matches(detection: Detection, demand: Demand) -> bool:
    return detection.shape == demand.shape and demand.colour in (None, detection.colour)


def relation_margins(a: Detection, b: Detection) -> dict[str, float]:
    """Components of GenEval's normalised offset of `a` from `b` by direction, in [-1, 1]."""
    offset = np.subtract(a.centre, b.centre)
    slack = POSITION_MARGIN * np.add(a.sides, b.sides)
    offset = np.sign(offset) * np.maximum(np.abs(offset) - slack, 0)
    length = float(np.linalg.norm(offset))
    x, y = offset / length if length else (0.0, 0.0)
    return {"left of": -float(x), "right of": float(x), "above": -float(y), "below": float(y)}


def _holds(relation: str, a: Detection, b: Detection) -> bool:
    return relation_margins(a, b)[relation] > 0.5


def graded_score(detections: list[Detection], spec: PromptSpec) -> float:
    """Graded fulfilment of the demands, in [0, 1]; smooth in outlines, colours and positions.

    Optimal assignment pairs each demanded object with at most one detection. Its grade is the rescaled outline overlap
    times the likelihood of the colour, times a logistic function of the relation's margin. The mean over the demanded
    objects is multiplied by 0.9 for every surplus detection.
    """
    wanted = [demand for demand in spec.demands for _ in range(demand.count)]
    if not detections:
        return 0.0
    grades = np.array([[_grade(d, demand) for d in detections] for demand in wanted])
    rows, columns = linear_sum_assignment(grades, maximize=True)
    assigned = dict(zip(rows.tolist(), columns.tolist(), strict=True))
    total = 0.0
    for row, demand in enumerate(wanted):
        if row not in assigned:
            continue
        grade = float(grades[row, assigned[row]])
        if demand.relation:
            # Without a detected partner the direction counts as undecided: half the grade.
            margin = 0.5
            if 0 in assigned:
                margin = relation_margins(detections[assigned[row]], detections[assigned[0]])[demand.relation]
            grade /= 1 + math.exp(-8 * (margin - 0.5))
        total += grade
    surplus = max(len(detections) - len(wanted), 0)
    return total / len(wanted) * float(CLUTTER_FACTOR**surplus)


def _grade(detection: Detection, demand: Demand) -> float:
    colour = 1.0
    if demand.colour:
        colour = float(detection.colour_likelihoods[list(COLOURS).index(demand.colour)])
    return outline_grade(detection, demand.shape) * colour


def outline_grade(detection: Detection, shape: str) -> float:
    """Overlap with a shape's outline, rescaled from [0.4, 1] to [0, 1]."""
    return max((float(detection.overlaps[SHAPES.index(shape)]) - 0.4) / 0.6, 0.0)


def vividness(image: NDArray[np.floating]) -> float:
    """Mean chroma (largest minus smallest channel) of an image's most chromatic quarter of pixels, in [0, 1].

    It rewards large areas of saturated colour and ignores the prompt. A policy can raise it with larger or more
    objects, or by shifting orange towards yellow: it serves as a reward that can be hacked. The image is [3, H, W] in
    [0, 1].
    """
    pixels = np.asarray(image, dtype=np.float64)
    chroma = np.sort((pixels.max(axis=0) - pixels.min(axis=0)).ravel())
    return float(chroma[-(chroma.size // 4) :].mean())
