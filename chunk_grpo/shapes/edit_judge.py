"""Judge an edit by the detections of its image: what was asked happened, and nothing else changed.

A detection belongs to the thing of the source in whose bounding box its centre lies. Things are apart, so it belongs
to one at most; what belongs to none was added.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chunk_grpo.shapes.detect import MIN_CONFIDENCE, Detection, background_of, detect
from chunk_grpo.shapes.edits import Edit
from chunk_grpo.shapes.judge import CLUTTER_FACTOR, outline_grade
from chunk_grpo.shapes.scene import COLOURS, SIZE, Thing

TOLERANCE = 2.0
"""Largest distance of each edge of a bounding box from where it should be, in pixels: place and size are kept."""


@dataclass(frozen=True)
class Verdict:
    """Exact judgement of an edit."""

    asked: str | None
    """Why what was asked did not happen, in words; None: it did."""
    kept: str | None
    """Why something else changed, in words; None: nothing did."""

    @property
    def fault(self) -> str | None:
        """The first fault; None: the edit is right."""
        return self.asked or self.kept


@dataclass(frozen=True)
class _Reading:
    """What is seen of each thing of the source, in its order; and what is seen elsewhere."""

    background: str
    of: tuple[list[Detection], ...]
    added: list[Detection]


def judge_edit(image: NDArray[np.floating], edit: Edit) -> Verdict:
    """Judge an edit by exact rules. The image is [3, SIZE, SIZE] in [0, 1]; ValueError for another size."""
    seen, things = _read(image, edit), edit.source.things
    if edit.wanted is None:
        asked = f"{_name(things[0])} still there" if seen.of[0] else None
    else:
        asked = _fault(edit.wanted, seen.of[0])
    faults = [_fault(thing, found) for thing, found in zip(things[1:], seen.of[1:], strict=True)]
    if seen.background != edit.source.background:
        faults.insert(0, f"background {seen.background}, not {edit.source.background}")
    faults += [f"{detection.colour} {detection.shape} added" for detection in seen.added]
    return Verdict(asked, next((fault for fault in faults if fault), None))


def graded_edit(image: NDArray[np.floating], edit: Edit) -> float:
    """Graded fulfilment of the same rules, in [0, 1]; smooth in outlines, colours and places.

    Grade of the asked change, times the mean grade of the other things, times 0.9 for everything that was added; 0 on
    another background. A thing's grade is its rescaled outline overlap times the likelihood of its colour, times a
    Gauss curve of the farthest edge's distance; that of a removed thing is 1 minus what is still there.
    """
    seen = _read(image, edit)
    if seen.background != edit.source.background:
        return 0.0
    if edit.wanted is None:
        asked = 1 - max((outline_grade(d, d.shape) for d in seen.of[0]), default=0.0)
    else:
        asked = _grade(edit.wanted, seen.of[0])
    others = [_grade(*pair) for pair in zip(edit.source.things[1:], seen.of[1:], strict=True)]
    kept = sum(others) / len(others) if others else 1.0
    return float(asked * kept * CLUTTER_FACTOR ** len(seen.added))


def _read(image: NDArray[np.floating], edit: Edit) -> _Reading:
    if image.shape != (3, SIZE, SIZE):
        raise ValueError(f"image: must be [3, {SIZE}, {SIZE}], as the scene that it edits, got {image.shape}")
    things, found = edit.source.things, detect(image)
    owners = [next((i for i, thing in enumerate(things) if _inside(detection, thing)), None) for detection in found]
    pairs = list(zip(found, owners, strict=True))
    of = tuple([d for d, owner in pairs if owner == index] for index in range(len(things)))
    return _Reading(background_of(image), of, [d for d, owner in pairs if owner is None])


def _inside(detection: Detection, thing: Thing) -> bool:
    x, y = detection.centre
    return max(abs(x - thing.x), abs(y - thing.y)) <= thing.radius


def _name(thing: Thing) -> str:
    return f"{thing.colour} {thing.shape}"


def _distance(thing: Thing, detection: Detection) -> float:
    """Distance of the farthest edge from the thing's, in pixels."""
    x, y, radius = thing.x, thing.y, thing.radius
    edges = np.subtract(detection.box, (x - radius, y - radius, x + radius, y + radius))
    return float(np.abs(edges).max())


def _fault(thing: Thing, found: Sequence[Detection]) -> str | None:
    """Why a thing is not exactly there; None: it is."""
    if len(found) != 1:
        return f"{len(found)} things in the place of {_name(thing)}" if found else f"no {_name(thing)}"
    (one,) = found
    if (one.shape, one.colour) != (thing.shape, thing.colour):
        return f"{_name(thing)} read as {one.colour} {one.shape}"
    if one.confidence < MIN_CONFIDENCE:
        return f"outline of {_name(thing)} unclear"
    if (distance := _distance(thing, one)) > TOLERANCE:
        return f"edge of {_name(thing)} off by {distance:.1f} pixels"
    return None


def _grade(thing: Thing, found: Sequence[Detection]) -> float:
    """Grade of the best detection in a thing's place; each other one there counts as added."""
    grades = [
        outline_grade(one, thing.shape)
        * float(one.colour_likelihoods[list(COLOURS).index(thing.colour)])
        * math.exp(-0.5 * (_distance(thing, one) / TOLERANCE) ** 2)
        for one in found
    ]
    return max(grades) * float(CLUTTER_FACTOR ** (len(found) - 1)) if grades else 0.0
