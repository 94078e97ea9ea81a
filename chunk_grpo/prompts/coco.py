"""Generated prompts about COCO's objects, with records in GenEval's format; needs no download.

Wordings, plurals and contents are this package's own; none of GenEval's prompts is included.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from chunk_grpo.prompts.rows import PromptRow
from chunk_grpo.scorers.geneval.records import CLASS_NAMES, COLOURS, TAGS

SOURCE = "coco"
"""Source name of generated rows."""

Part: TypeAlias = Literal["all", "train", "eval"]

HELD_OUT = 5
"""Every fifth content belongs to `eval`, the others to `train`, independent of the seed."""

_NUMBERS = {2: "two", 3: "three", 4: "four"}

_PLURALS = {
    "person": "people",
    "sheep": "sheep",
    "knife": "knives",
    "computer mouse": "computer mice",
    "skis": "pairs of skis",
    "scissors": "pairs of scissors",
    "broccoli": "heads of broccoli",
}

_MEASURES = {"skis": "pair of ", "scissors": "pair of ", "broccoli": "head of "}
"""Prefixes for words without a singular."""

_ONE = ("a clear picture of {}", "an image that shows {}", "{} in full view", "a scene with {} in it")
_TWO = (
    "a clear picture of {} and {}",
    "an image that shows {} together with {}",
    "{} and {} in one scene",
    "a scene with both {} and {}",
)
_PLACED = (
    "a clear picture of {} {} {}",
    "an image that shows {} {} {}",
    "a scene in which {} is {} {}",
    "{}, placed {} {}",
)
_WORDS = {"left of": "to the left of", "right of": "to the right of", "above": "above", "below": "below"}
_SEEN_FROM_THE_OTHER = {"left of": "right of", "above": "below"}

Record: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class _Kind:
    """Prompts of a tag.

    Attributes:
        factors: Sets whose product is the set of contents.
        forms: Number of wordings of a content; each gives a different prompt.
        record: Function that builds the record of a content in a form.
    """

    factors: tuple[Sequence[Any], ...]
    forms: int
    record: Callable[[tuple[Any, ...], int], Record]


def coco_prompts(count: int, seed: int, part: Part = "all") -> list[PromptRow]:
    """Draw prompts; the six tags of GenEval alternate.

    A content of a tag repeats only after all its contents were drawn, and a prompt only after all contents were drawn
    in all forms: 320 prompts of the smallest tag, single_object (256 in `train`, 64 in `eval`).

    Args:
        count: Number of prompts, >= 0.
        seed: Seed of the random draw.
        part: Part of the contents; `train` and `eval` share no content for any seeds.

    Returns:
        The prompts; category is the tag, metadata the record, line counts from 1.

    Raises:
        ValueError: `count` is negative.
    """
    if count < 0:
        raise ValueError(f"count must be >= 0, got {count}")
    drawn = []
    for position, tag in enumerate(TAGS):
        rng = random.Random(f"{seed}/{part}/{tag}")
        drawn.append(iter(_draw(_KINDS[tag], len(range(position, count, len(TAGS))), part, rng)))
    records = [next(drawn[number % len(TAGS)]) for number in range(count)]
    return [
        PromptRow(record["prompt"], record["tag"], record, number, SOURCE)
        for number, record in enumerate(records, start=1)
    ]


def _draw(kind: _Kind, count: int, part: Part, rng: random.Random) -> list[Record]:
    """Draw every content once in random order, then again in its next form, until `count` is reached."""
    numbers = _numbers(math.prod(len(factor) for factor in kind.factors), part)
    forms: dict[int, int] = {}
    drawn: list[Record] = []
    while len(drawn) < count:
        for number in rng.sample(numbers, min(count - len(drawn), len(numbers))):
            forms[number] = forms[number] + 1 if number in forms else rng.randrange(kind.forms)
            drawn.append(kind.record(_content(kind.factors, number), forms[number] % kind.forms))
    return drawn


def _numbers(size: int, part: Part) -> Sequence[int]:
    """Numbers of the contents of a part."""
    if part == "eval":
        return range(HELD_OUT - 1, size, HELD_OUT)
    if part == "train":
        return [number for number in range(size) if number % HELD_OUT != HELD_OUT - 1]
    return range(size)


def _content(factors: Sequence[Sequence[Any]], number: int) -> tuple[Any, ...]:
    """Content with this number: the digits of the number in the mixed base of the factors' sizes."""
    content = []
    for factor in factors:
        number, digit = divmod(number, len(factor))
        content.append(factor[digit])
    return tuple(content)


def _single_object(content: tuple[Any, ...], form: int) -> Record:
    (thing,) = content
    return _made("single_object", [_entry(thing)], _ONE[form].format(_one(thing)))


def _two_object(content: tuple[Any, ...], form: int) -> Record:
    things = _turned(content[0], form)
    prompt = _TWO[form // 2].format(*map(_one, things))
    return _made("two_object", [_entry(thing) for thing in things], prompt)


def _counting(content: tuple[Any, ...], form: int) -> Record:
    count, thing = content
    prompt = _ONE[form].format(f"{_NUMBERS[count]} {_plural(thing)}")
    return _made("counting", [_entry(thing, count)], prompt, exclude=[_entry(thing, count + 1)])


def _colors(content: tuple[Any, ...], form: int) -> Record:
    thing, color = content
    return _made("colors", [_entry(thing) | {"color": color}], _ONE[form].format(_one(thing, color)))


def _position(content: tuple[Any, ...], form: int) -> Record:
    """Odd forms state the inverse relation; GenEval's record lists the reference object first."""
    relation, (placed, target) = content
    if form % 2:
        relation, placed, target = _SEEN_FROM_THE_OTHER[relation], target, placed
    prompt = _PLACED[form // 2].format(_one(placed), _WORDS[relation], _one(target))
    return _made("position", [_entry(target), _entry(placed) | {"position": [relation, 0]}], prompt)


def _color_attr(content: tuple[Any, ...], form: int) -> Record:
    things, colors = content
    pairs = _turned(((things[0], colors[0]), (things[1], colors[1])), form)
    prompt = _TWO[form // 2].format(*(_one(thing, color) for thing, color in pairs))
    return _made("color_attr", [_entry(thing) | {"color": color} for thing, color in pairs], prompt)


def _turned(pair: tuple[Any, Any], form: int) -> tuple[Any, Any]:
    return (pair[1], pair[0]) if form % 2 else pair


def _entry(thing: str, count: int = 1) -> Record:
    return {"class": thing, "count": count}


def _made(tag: str, include: list[Record], prompt: str, exclude: list[Record] | None = None) -> Record:
    """Record with keys in GenEval's order."""
    return {"tag": tag, "include": include, **({"exclude": exclude} if exclude else {}), "prompt": prompt}


def _one(thing: str, color: str | None = None) -> str:
    """Singular with article: a red car, an oven, a pair of red skis."""
    words = _MEASURES.get(thing, "") + (f"{color} {thing}" if color else thing)
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def _plural(thing: str) -> str:
    if thing in _PLURALS:
        return _PLURALS[thing]
    return f"{thing}es" if thing.endswith(("s", "sh", "ch", "x")) else f"{thing}s"


_COLORED = tuple(thing for thing in CLASS_NAMES if thing != "person")
"""Classes in colour prompts; without person, because the colour could be read as skin colour."""

_KINDS: Mapping[str, _Kind] = {
    "single_object": _Kind((CLASS_NAMES,), len(_ONE), _single_object),
    "two_object": _Kind((list(itertools.combinations(CLASS_NAMES, 2)),), 2 * len(_TWO), _two_object),
    "counting": _Kind((tuple(_NUMBERS), CLASS_NAMES), len(_ONE), _counting),
    "colors": _Kind((_COLORED, COLOURS), len(_ONE), _colors),
    "position": _Kind(
        (tuple(_SEEN_FROM_THE_OTHER), list(itertools.permutations(CLASS_NAMES, 2))),
        2 * len(_PLACED),
        _position,
    ),
    "color_attr": _Kind(
        (list(itertools.combinations(_COLORED, 2)), list(itertools.permutations(COLOURS, 2))),
        2 * len(_TWO),
        _color_attr,
    ),
}
