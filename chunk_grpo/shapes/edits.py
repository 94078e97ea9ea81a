"""Edits of the shapes world: an instruction, the scene that it edits, and the scene that it asks for.

The named thing is the first one of the scene, and the only one that fits its name. A quarter of the instructions is
held out of tuning, as captions are: pre-training uses every instruction.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Literal, get_args

from chunk_grpo.shapes.layout import place_things
from chunk_grpo.shapes.scene import BACKGROUNDS, COLOURS, SHAPES, Scene, Thing

EditKind = Literal["recolour", "replace", "remove"]
EDIT_KINDS: tuple[EditKind, ...] = get_args(EditKind)

NUM_THINGS = (2, 3)
"""Numbers of things in a scene to edit: at least one is to stay as it is."""


@dataclass(frozen=True)
class Instruction:
    """What is to be done to which thing."""

    prompt: str
    """Its text."""
    kind: EditKind
    """What is done: another colour, another shape at the same place, or nothing there."""
    shape: str
    """Shape of the thing."""
    colour: str | None
    """Colour by which the thing is named too; None: its shape is enough."""
    to: str | None
    """Its new colour or shape; None: it is removed."""

    @property
    def held_out(self) -> bool:
        """Whether the instruction is in the quarter that training prompts exclude."""
        content = f"{self.kind}|{self.colour}|{self.shape}|{self.to}"
        return hashlib.sha256(content.encode()).digest()[0] % 4 == 0

    def fits(self, shape: str, colour: str) -> bool:
        """Whether a thing of this shape and colour fits the name of the thing to edit."""
        return shape == self.shape and self.colour in (None, colour)


@dataclass(frozen=True)
class Edit:
    """An instruction for a scene."""

    prompt: str
    """Text of the instruction."""
    kind: EditKind
    """What is done to the first thing of the scene."""
    to: str | None
    """Its new colour or shape; None: it is removed."""
    source: Scene
    """Scene to edit; coordinates have two decimals."""

    @property
    def wanted(self) -> Thing | None:
        """What the first thing should become; None: it should be removed."""
        thing = self.source.things[0]
        if self.to is None:
            return None
        return replace(thing, colour=self.to) if self.kind == "recolour" else replace(thing, shape=self.to)

    @property
    def result(self) -> Scene:
        """The scene that is asked for."""
        wanted = () if self.wanted is None else (self.wanted,)
        return replace(self.source, things=(*wanted, *self.source.things[1:]))

    def metadata(self) -> dict[str, object]:
        """Convert the edit to a prompt's metadata, by which scorers judge it."""
        things = [asdict(thing) for thing in self.source.things]
        scene = {"background": self.source.background, "things": things}
        return {"tag": self.kind, "to": self.to, "source": scene}


def all_instructions() -> list[Instruction]:
    """All instructions, in a fixed order."""
    found = []
    for colour, shape in product((None, *COLOURS), SHAPES):
        name = f"the {colour} {shape}" if colour else f"the {shape}"
        found += [Instruction(f"make {name} {to}", "recolour", shape, colour, to) for to in COLOURS if to != colour]
        found += [Instruction(f"make {name} a {to}", "replace", shape, colour, to) for to in SHAPES if to != shape]
        found.append(Instruction(f"remove {name}", "remove", shape, colour, None))
    return found


def draw_edit(instruction: Instruction, rng: random.Random) -> Edit:
    """Draw a scene that an instruction can edit: one thing fits its name, and is not yet as it is asked to be."""
    old = instruction.colour or rng.choice([c for c in COLOURS if c != instruction.to])
    others = [(shape, colour, None) for shape in SHAPES for colour in COLOURS if not instruction.fits(shape, colour)]
    count = rng.choice(NUM_THINGS) - 1
    scene = place_things([(instruction.shape, old, None), *rng.choices(others, k=count)], rng)
    things = tuple(
        replace(thing, x=round(thing.x, 2), y=round(thing.y, 2), radius=round(thing.radius, 2))
        for thing in scene.things
    )
    return Edit(instruction.prompt, instruction.kind, instruction.to, replace(scene, things=things))


def parse_edit(prompt: str, record: Mapping[str, object]) -> Edit:
    """Inverse of `Edit.metadata`. ValueError with field and value for a record that is no edit of the shapes world."""
    kind, to, scene = record.get("tag"), record.get("to"), record.get("source")
    if kind not in EDIT_KINDS:
        raise ValueError(f"tag: must be one of {', '.join(EDIT_KINDS)}, got {kind!r}")
    allowed: dict[str, tuple[str | None, ...]] = {"recolour": (*COLOURS,), "replace": SHAPES, "remove": (None,)}
    if to not in allowed[kind]:
        raise ValueError(f"to: must be one of {', '.join(map(str, allowed[kind]))} for {kind}, got {to!r}")
    if not isinstance(scene, dict) or scene.get("background") not in BACKGROUNDS:
        raise ValueError(f"source: must be a scene on one of {', '.join(BACKGROUNDS)}, got {scene!r}")
    things = scene.get("things")
    if not isinstance(things, list) or not things:
        raise ValueError(f"source.things: a non-empty list is needed, got {things!r}")
    parsed = tuple(_thing(thing) for thing in things)
    return Edit(prompt, kind, to, Scene(scene["background"], parsed))


def _thing(record: object) -> Thing:
    if not isinstance(record, dict) or record.keys() != {"shape", "colour", "x", "y", "radius"}:
        raise ValueError(f"source.things: each needs shape, colour, x, y and radius, got {record!r}")
    if record["shape"] not in SHAPES or record["colour"] not in COLOURS:
        raise ValueError(f"source.things: shapes are {', '.join(SHAPES)}, colours {', '.join(COLOURS)}, got {record!r}")
    return Thing(record["shape"], record["colour"], *(float(record[name]) for name in ("x", "y", "radius")))
