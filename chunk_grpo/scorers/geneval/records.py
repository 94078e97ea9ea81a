"""GenEval's prompt records: what a picture of a prompt must and must not show.

A record is a line of evaluation_metadata.jsonl (github.com/djghosh13/geneval, commit af4902f):

    {"tag": "position",
     "include": [{"class": "skateboard", "count": 1},
                 {"class": "bird", "count": 1, "position": ["below", 0]}],
     "exclude": [],
     "prompt": "a photo of a bird below a skateboard"}

`color` is one more key of an `include` clause; the number of a `position` is that of an earlier clause; `exclude`
may be left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

TAGS = ("single_object", "two_object", "counting", "colors", "position", "color_attr")
"""The six tasks, in the order of the paper's table."""

COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white")
"""Those that the classifier tells apart, in the original's order: it decides between equal similarities."""

RELATIONS = ("left of", "right of", "above", "below")

COCO_NAMES = (
    *("person", "bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat", "traffic light"),
    *("fire hydrant", "stop sign", "parking meter", "bench", "bird", "cat", "dog", "horse", "sheep", "cow"),
    *(
        "elephant",
        "bear",
        "zebra",
        "giraffe",
        "backpack",
        "umbrella",
        "handbag",
        "tie",
        "suitcase",
        "frisbee",
    ),
    *(
        "skis",
        "snowboard",
        "sports ball",
        "kite",
        "baseball bat",
        "baseball glove",
        "skateboard",
        "surfboard",
    ),
    *("tennis racket", "bottle", "wine glass", "cup", "fork", "knife", "spoon", "bowl", "banana", "apple"),
    *("sandwich", "orange", "broccoli", "carrot", "hot dog", "pizza", "donut", "cake", "chair", "couch"),
    *("potted plant", "bed", "dining table", "toilet", "tv", "laptop", "mouse", "remote", "keyboard"),
    *("cell phone", "microwave", "oven", "toaster", "sink", "refrigerator", "book", "clock", "vase"),
    *("scissors", "teddy bear", "hair drier", "toothbrush"),
)
"""COCO's 80 classes in the order of a detector's outputs."""

_GENEVAL_NAMES = {"mouse": "computer mouse", "remote": "tv remote", "keyboard": "computer keyboard"}
"""COCO's names that GenEval's prompts and records word differently (its object_names.txt)."""

CLASS_NAMES = tuple(_GENEVAL_NAMES.get(name, name) for name in COCO_NAMES)
"""The same classes in the words of GenEval's records."""


@dataclass(frozen=True)
class Wanted:
    """A clause of `include`: at least `count` objects of a class, of a colour or at a place.

    Attributes:
        class_name: One of CLASS_NAMES.
        count: At least 1.
        colour: One of COLOURS; None: any.
        relation: One of RELATIONS: where they lie, seen from the objects of clause `target`; None: anywhere.
        target: Number of an earlier clause; None without a relation.
    """

    class_name: str
    count: int
    colour: str | None = None
    relation: str | None = None
    target: int | None = None


@dataclass(frozen=True)
class Unwanted:
    """A clause of `exclude`: fewer than `count` objects of a class."""

    class_name: str
    count: int


@dataclass(frozen=True)
class GenEvalRecord:
    """What a picture is judged by.

    Attributes:
        tag: One of TAGS; counting has a threshold of its own.
        include: Every one must be met.
        exclude: None may be broken.
    """

    tag: str
    include: tuple[Wanted, ...]
    exclude: tuple[Unwanted, ...]


def parse_record(record: Mapping[str, object]) -> GenEvalRecord:
    """Read a line of evaluation_metadata.jsonl.

    The original takes whatever it is given: a misspelt class is never found and a misspelt key asks for nothing.
    Here both are refused.

    Args:
        record: The JSON object.

    Raises:
        ValueError: It is no such record; names the key, the rule and the value.
    """
    _only("the record", record, required={"tag", "include"}, optional={"exclude", "prompt"})
    tag = _one_of("tag", record["tag"], TAGS)
    include = [
        _clause(f"include.{number}", clause) for number, clause in _listed("include", record["include"])
    ]
    if not include:
        raise ValueError("include: must demand one object at least, got []")
    return GenEvalRecord(
        tag,
        tuple(_wanted(f"include.{number}", clause, number) for number, clause in enumerate(include)),
        tuple(
            _unwanted(f"exclude.{number}", _clause(f"exclude.{number}", clause))
            for number, clause in _listed("exclude", record.get("exclude", []))
        ),
    )


def _wanted(key: str, clause: Mapping[str, object], number: int) -> Wanted:
    _only(key, clause, required={"class", "count"}, optional={"color", "position"})
    colour = _one_of(f"{key}.color", clause["color"], COLOURS) if "color" in clause else None
    relation, target = (
        _position(f"{key}.position", clause["position"], number) if "position" in clause else (None, None)
    )
    return Wanted(_class(key, clause), _count(key, clause), colour, relation, target)


def _unwanted(key: str, clause: Mapping[str, object]) -> Unwanted:
    _only(key, clause, required={"class", "count"}, optional=set())
    return Unwanted(_class(key, clause), _count(key, clause))


def _position(key: str, value: object, number: int) -> tuple[str, int]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ValueError(f"{key}: must be [relation, number of an earlier clause], got {value!r}")
    relation, target = _one_of(key, value[0], RELATIONS), value[1]
    if not _is_integer(target) or not 0 <= target < number:
        raise ValueError(f"{key}: must point to an earlier clause than {number}, got {target!r}")
    return relation, int(target)


def _class(key: str, clause: Mapping[str, object]) -> str:
    value = clause["class"]
    if value not in CLASS_NAMES:
        hint = f" (GenEval's name is {_GENEVAL_NAMES[value]!r})" if value in _GENEVAL_NAMES else ""
        raise ValueError(f"{key}.class: must be one of COCO's 80 classes, got {value!r}{hint}")
    return str(value)


def _count(key: str, clause: Mapping[str, object]) -> int:
    value = clause["count"]
    if not _is_integer(value) or value < 1:  # type: ignore[operator]  # an int by the first test
        raise ValueError(f"{key}.count: must be an integer of at least 1, got {value!r}")
    return int(value)  # type: ignore[call-overload, no-any-return]  # same


def _one_of(key: str, value: object, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise ValueError(f"{key}: must be one of {', '.join(allowed)}, got {value!r}")
    return str(value)


def _listed(key: str, value: object) -> list[tuple[int, object]]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"{key}: must be a list, got {value!r}")
    return list(enumerate(value))


def _clause(key: str, value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{key}: must be an object with class and count, got {value!r}")
    return value


def _only(key: str, value: Mapping[str, object], required: set[str], optional: set[str]) -> None:
    if missing := required - set(value):
        raise ValueError(
            f"{key}: needs {', '.join(sorted(missing))}, has {', '.join(map(str, value)) or 'nothing'}"
        )
    if surplus := set(value) - required - optional:
        raise ValueError(f"{key}: unknown {', '.join(sorted(map(str, surplus)))}")


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
