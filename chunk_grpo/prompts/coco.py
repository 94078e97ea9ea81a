"""Generated prompts about COCO's objects, with records in GenEval's format; needs no download.

Wordings, plurals and contents are this package's own; none of GenEval's prompts is included.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

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


class _Kind(NamedTuple):
    """Prompts of a tag."""

    factors: tuple[Sequence[Any], ...]
    """Sets whose product is the set of contents."""
    forms: int
    """Number of wordings of a content; each gives a different prompt."""
    record: Callable[[tuple[Any, ...], int], Record]
    """Function that builds the record of a content in a form, without its tag."""


def coco_prompts(count: int, seed: int, part: Part = "all") -> list[PromptRow]:
    """Draw prompts; the six tags of GenEval, the categories, alternate. Metadata are the record; line counts from 1.

    A content of a tag repeats only after all its contents were drawn, and a prompt only after all contents were drawn
    in all forms: 320 prompts of the smallest tag, single_object (256 in `train`, 64 in `eval`). The parts `train` and
    `eval` share no content for any seeds.
    """
    if count < 0:
        raise ValueError(f"count must be >= 0, got {count}")
    drawn = [
        _draw(tag, len(range(position, count, len(TAGS))), part, random.Random(f"{seed}/{part}/{tag}"))
        for position, tag in enumerate(TAGS)
    ]
    records = [drawn[number % len(TAGS)][number // len(TAGS)] for number in range(count)]
    return [
        PromptRow(record["prompt"], record["tag"], record, number, SOURCE)
        for number, record in enumerate(records, start=1)
    ]


def _draw(tag: str, count: int, part: Part, rng: random.Random) -> list[Record]:
    """Draw every content once in random order, then again in its next form, until `count` is reached."""
    kind = _KINDS[tag]
    numbers: Sequence[int] = range(math.prod(map(len, kind.factors)))
    if part != "all":
        numbers = [n for n in numbers if (n % HELD_OUT == HELD_OUT - 1) == (part == "eval")]
    forms: dict[int, int] = {}
    drawn: list[Record] = []
    while len(drawn) < count:
        for number in rng.sample(numbers, min(count - len(drawn), len(numbers))):
            forms[number] = forms[number] + 1 if number in forms else rng.randrange(kind.forms)
            record = kind.record(_content(kind.factors, number), forms[number] % kind.forms)
            drawn.append({"tag": tag} | record)
    return drawn


def _content(factors: Sequence[Sequence[Any]], number: int) -> tuple[Any, ...]:
    """Content with this number: the digits of the number in the mixed base of the factors' sizes."""
    content = []
    for factor in factors:
        number, digit = divmod(number, len(factor))
        content.append(factor[digit])
    return tuple(content)


def _one_thing(content: tuple[Any, ...], form: int) -> Record:
    """Record of a thing, and perhaps its colour."""
    return {"include": [_entry(*content)], "prompt": _ONE[form].format(_one(*content))}


def _two_things(content: tuple[Any, ...], form: int) -> Record:
    """Record of a pair of things, and perhaps the pair of their colours; odd forms turn the pairs."""
    pairs = list(zip(*content, strict=True))[:: -1 if form % 2 else 1]
    prompt = _TWO[form // 2].format(*(_one(*pair) for pair in pairs))
    return {"include": [_entry(*pair) for pair in pairs], "prompt": prompt}


def _counting(content: tuple[Any, ...], form: int) -> Record:
    count, thing = content
    return {
        "include": [_entry(thing, count=count)],
        "exclude": [_entry(thing, count=count + 1)],
        "prompt": _ONE[form].format(f"{_NUMBERS[count]} {_plural(thing)}"),
    }


def _position(content: tuple[Any, ...], form: int) -> Record:
    """Odd forms state the inverse relation; GenEval's record lists the reference object first."""
    relation, (placed, target) = content
    if form % 2:
        relation, placed, target = _SEEN_FROM_THE_OTHER[relation], target, placed
    prompt = _PLACED[form // 2].format(_one(placed), _WORDS[relation], _one(target))
    return {"include": [_entry(target), _entry(placed) | {"position": [relation, 0]}], "prompt": prompt}


def _entry(thing: str, color: str | None = None, count: int = 1) -> Record:
    return {"class": thing, "count": count} | ({"color": color} if color else {})


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

_CLASS_PAIRS = tuple(itertools.combinations(CLASS_NAMES, 2))
_PLACED_PAIRS = tuple(itertools.permutations(CLASS_NAMES, 2))
_COLORED_PAIRS = tuple(itertools.combinations(_COLORED, 2))
_COLOR_PAIRS = tuple(itertools.permutations(COLOURS, 2))

_KINDS: Mapping[str, _Kind] = {
    "single_object": _Kind((CLASS_NAMES,), len(_ONE), _one_thing),
    "two_object": _Kind((_CLASS_PAIRS,), 2 * len(_TWO), _two_things),
    "counting": _Kind((tuple(_NUMBERS), CLASS_NAMES), len(_ONE), _counting),
    "colors": _Kind((_COLORED, COLOURS), len(_ONE), _one_thing),
    "position": _Kind((tuple(_SEEN_FROM_THE_OTHER), _PLACED_PAIRS), 2 * len(_PLACED), _position),
    "color_attr": _Kind((_COLORED_PAIRS, _COLOR_PAIRS), 2 * len(_TWO), _two_things),
}
