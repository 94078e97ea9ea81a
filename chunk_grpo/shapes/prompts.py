"""Captions of the shapes world in GenEval's six categories, with their demands on an image.

A `PromptSpec` carries its demands in the format of GenEval's evaluation_metadata.jsonl, so that the same prompt file
works with this package's detector and with the original evaluator's rules. A quarter of the contents is held out of
tuning: pre-training of the base model uses every caption, training rollouts do not use these.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import permutations
from typing import Literal

from chunk_grpo.shapes.scene import COLOURS, SHAPES

Category = Literal["single_object", "two_object", "counting", "colors", "position", "color_attr", "wise"]
CATEGORIES: tuple[Category, ...] = ("single_object", "two_object", "counting", "colors", "position", "color_attr")

RELATIONS = ("left of", "right of", "above", "below")
NUMBERS = {2: "two", 3: "three"}
PLURALS = {"circle": "circles", "square": "squares", "triangle": "triangles", "cross": "crosses"}

COLOUR_KNOWLEDGE = {
    "red": ("a ripe tomato", "fresh blood"),
    "yellow": ("a ripe banana", "a fresh lemon"),
    "green": ("fresh grass", "a fresh cucumber"),
    "blue": ("a clear sky", "the deep sea"),
    "purple": ("a ripe plum", "fresh lavender"),
}
SHAPE_KNOWLEDGE = {"circle": "no corners", "square": "four corners", "triangle": "three corners", "cross": "two bars"}


@dataclass(frozen=True)
class Demand:
    """One entry of GenEval's `include`: at least `count` objects of a class, colour and relation."""

    shape: str
    """Class of the objects."""
    count: int = 1
    """Minimum number of objects."""
    colour: str | None = None
    """Colour of the objects; None: any."""
    relation: str | None = None
    """Relation to the objects of entry 0, one of `RELATIONS`; None: any position."""


@dataclass(frozen=True)
class PromptSpec:
    """A caption and its demands; `exact` forbids more objects of a class than demanded (GenEval's `exclude`)."""

    prompt: str
    category: Category
    demands: tuple[Demand, ...]
    exact: bool = False

    def metadata(self) -> dict[str, object]:
        """Convert the demands to a record of GenEval's evaluation_metadata.jsonl."""
        include: list[dict[str, object]] = []
        for demand in self.demands:
            entry: dict[str, object] = {"class": demand.shape, "count": demand.count}
            if demand.colour:
                entry["color"] = demand.colour
            if demand.relation:
                entry["position"] = [demand.relation, 0]
            include.append(entry)
        record: dict[str, object] = {"tag": self.category, "include": include, "prompt": self.prompt}
        if self.exact:
            record["exclude"] = [{"class": d.shape, "count": d.count + 1} for d in self.demands]
        return record

    @property
    def held_out(self) -> bool:
        """Whether the content is in the quarter that training prompts exclude.

        The content is the demands; for single objects and counts, with few different demands, also the wording.
        """
        wording = self.prompt if self.category in ("single_object", "counting") else ""
        content = f"{self.category}|{self.demands}|{wording}"
        return hashlib.sha256(content.encode()).digest()[0] % 4 == 0


def _single() -> list[PromptSpec]:
    wordings = ("a {}", "one {}", "a single {}", "a picture of a {}", "a picture of one {}", "just a {}")
    return [PromptSpec(w.format(s), "single_object", (Demand(s),)) for w in wordings for s in SHAPES]


def _two() -> list[PromptSpec]:
    wordings = ("a {} and a {}", "a {} with a {}")
    return [
        PromptSpec(w.format(a, b), "two_object", (Demand(a), Demand(b)))
        for w in wordings
        for a, b in permutations(SHAPES, 2)
    ]


def _counting() -> list[PromptSpec]:
    wordings = ("{} {}", "exactly {} {}", "a picture of {} {}")
    return [
        PromptSpec(w.format(word, PLURALS[s]), "counting", (Demand(s, count),), exact=True)
        for w in wordings
        for count, word in NUMBERS.items()
        for s in SHAPES
    ]


def _colours() -> list[PromptSpec]:
    wordings = ("a {c} {s}", "one {c} {s}", "a {s} that is {c}")
    return [
        PromptSpec(w.format(c=c, s=s), "colors", (Demand(s, colour=c),))
        for w in wordings
        for c in COLOURS
        for s in SHAPES
    ]


def _positions() -> list[PromptSpec]:
    wordings = ("a {a} {r} a {b}", "one {a} {r} one {b}")
    return [
        PromptSpec(w.format(a=a, r=r, b=b), "position", (Demand(b), Demand(a, relation=r)))
        for w in wordings
        for r in RELATIONS
        for a, b in permutations(SHAPES, 2)
    ]


def _attributions() -> list[PromptSpec]:
    return [
        PromptSpec(f"a {ca} {a} and a {cb} {b}", "color_attr", (Demand(a, colour=ca), Demand(b, colour=cb)))
        for a, b in permutations(SHAPES, 2)
        for ca, cb in permutations(COLOURS, 2)
    ]


def all_prompts() -> list[PromptSpec]:
    """All captions of the six categories, in a fixed order."""
    return [*_single(), *_two(), *_counting(), *_colours(), *_positions(), *_attributions()]


def knowledge_prompts() -> list[PromptSpec]:
    """WISE-like set: colours and shapes described indirectly, through world knowledge.

    The text encoders are trained on these phrases; the transformer is not.
    """
    by_colour = [
        PromptSpec(f"a {s} coloured like {phrase}", "wise", (Demand(s, colour=c),))
        for c, phrases in COLOUR_KNOWLEDGE.items()
        for phrase in phrases
        for s in SHAPES
    ]
    by_shape = [PromptSpec(f"a shape with {phrase}", "wise", (Demand(s),)) for s, phrase in SHAPE_KNOWLEDGE.items()]
    by_shape_and_colour = [
        PromptSpec(f"a {c} shape with {phrase}", "wise", (Demand(s, colour=c),))
        for s, phrase in SHAPE_KNOWLEDGE.items()
        for c in COLOURS
    ]
    return [*by_colour, *by_shape, *by_shape_and_colour]


def parse_metadata(record: dict[str, object]) -> PromptSpec:
    """Inverse of `PromptSpec.metadata`. ValueError with field and value for a record of another world."""
    include = record.get("include")
    if not isinstance(include, list) or not include:
        raise ValueError(f"include: a non-empty list of demands is needed, got {include!r}")
    demands = []
    for entry in include:
        if not isinstance(entry, dict):
            raise ValueError(f"include: each demand must be a mapping, got {entry!r}")
        relation = entry.get("position")
        if entry.get("class") not in SHAPES:
            raise ValueError(f"include.class: must be one of {', '.join(SHAPES)}, got {entry.get('class')!r}")
        if entry.get("color") not in (None, *COLOURS):
            raise ValueError(f"include.color: must be one of {', '.join(COLOURS)}, got {entry['color']!r}")
        if relation is not None and (not isinstance(relation, list) or not relation or relation[0] not in RELATIONS):
            raise ValueError(
                f"include.position: must be [relation, 0], one of {', '.join(RELATIONS)}, got {relation!r}"
            )
        place = relation[0] if relation else None
        demands.append(Demand(entry["class"], int(entry.get("count", 1)), entry.get("color"), place))
    return PromptSpec(str(record["prompt"]), record["tag"], tuple(demands), exact="exclude" in record)  # type: ignore[arg-type]  # the tag is free text in user files
