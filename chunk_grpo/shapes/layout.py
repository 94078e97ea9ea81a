"""Sample a scene that fulfils a caption: exactly the demanded objects, without overlap."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeAlias

from chunk_grpo.shapes.prompts import PromptSpec
from chunk_grpo.shapes.scene import BACKGROUNDS, COLOURS, MAX_RADIUS, MIN_RADIUS, SIZE, Scene, Thing

GAP = 2.0
"""Minimum distance between two bounding boxes, and of a box from the edge, in pixels."""

FOLLOWS = "follows"
"""Relation used by `left_to_right`: to the right of the first object, at any height."""

Wanted: TypeAlias = tuple[str, str | None, str | None]
"""Shape of a thing, its colour and its relation to the first thing; None: any."""

_ATTEMPTS = 200


def sample_scene(spec: PromptSpec, rng: random.Random, *, left_to_right: bool = False) -> Scene:
    """Draw a scene that fulfils `spec`; unspecified colours, sizes and positions are random.

    With `left_to_right`, different objects without a stated relation are placed in the caption's order.
    """
    wanted = [
        (demand.shape, demand.colour, demand.relation or (FOLLOWS if left_to_right and number else None))
        for number, demand in enumerate(spec.demands)
        for _ in range(demand.count)
    ]
    return place_things(wanted, rng)


def place_things(wanted: Sequence[Wanted], rng: random.Random) -> Scene:
    """Draw a scene of the wanted things, in their order; what they leave open is random.

    RuntimeError if no layout was found, which does not happen in practice with at most four things.
    """
    for _ in range(_ATTEMPTS):
        things = _place(wanted, rng)
        if things is not None:
            return Scene(rng.choice(sorted(BACKGROUNDS)), things)
    raise RuntimeError(f"no layout found for {list(wanted)} in {_ATTEMPTS} attempts")


def _place(wanted: Sequence[Wanted], rng: random.Random) -> tuple[Thing, ...] | None:
    things: list[Thing] = []
    for shape, colour, relation in wanted:
        for _ in range(30):
            radius = rng.uniform(MIN_RADIUS, MAX_RADIUS)
            low, high = radius + GAP / 2, SIZE - radius - GAP / 2
            thing = Thing(
                shape, colour or rng.choice(sorted(COLOURS)), rng.uniform(low, high), rng.uniform(low, high), radius
            )
            if all(_apart(thing, other) for other in things) and _related(thing, things, relation):
                things.append(thing)
                break
        else:
            return None
    return tuple(things)


def _apart(a: Thing, b: Thing) -> bool:
    return max(abs(a.x - b.x), abs(a.y - b.y)) >= a.radius + b.radius + GAP


def _related(thing: Thing, things: list[Thing], relation: str | None) -> bool:
    """Whether the relation holds and is the dominant direction, so that captions are unambiguous."""
    if relation is None:
        return True
    dx, dy = thing.x - things[0].x, thing.y - things[0].y
    along, across = {
        "left of": (-dx, dy),
        "right of": (dx, dy),
        "above": (-dy, dx),
        "below": (dy, dx),
        FOLLOWS: (dx, 0.0),
    }[relation]
    return along >= thing.radius + things[0].radius + GAP and abs(across) <= 0.7 * along
