"""GenEval's prompt records: what an image of a prompt must and must not show.

A record is a line of evaluation_metadata.jsonl (github.com/djghosh13/geneval, commit af4902f):

    {"tag": "position",
     "include": [{"class": "skateboard", "count": 1},
                 {"class": "bird", "count": 1, "position": ["below", 0]}],
     "exclude": [],
     "prompt": "a photo of a bird below a skateboard"}

An `include` clause may also have the key `color`. The number in `position` is the index of an earlier clause.
`exclude` may be omitted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, PositiveInt, ValidationError
from pydantic_core import PydanticCustomError

from chunk_grpo.config.problems import Problem, schema_problems, show
from chunk_grpo.config.section import Section

TAGS = ("single_object", "two_object", "counting", "colors", "position", "color_attr")
"""The six tasks, in the order of the paper's table."""

OFFICIAL_COUNTS: Mapping[str, int] = {
    "single_object": 80,
    "two_object": 99,
    "counting": 80,
    "colors": 94,
    "position": 100,
    "color_attr": 100,
}
"""Number of prompts of each tag in the official file, 553 in total."""

COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white")
"""Colours of the classifier, in the original's order, which breaks ties between equal similarities."""

RELATIONS = ("left of", "right of", "above", "below")

COCO_NAMES = (
    *("person", "bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat", "traffic light"),
    *("fire hydrant", "stop sign", "parking meter", "bench", "bird", "cat", "dog", "horse", "sheep", "cow"),
    *("elephant", "bear", "zebra", "giraffe", "backpack", "umbrella", "handbag", "tie", "suitcase"),
    *("frisbee", "skis", "snowboard", "sports ball", "kite", "baseball bat", "baseball glove"),
    *("skateboard", "surfboard"),
    *("tennis racket", "bottle", "wine glass", "cup", "fork", "knife", "spoon", "bowl", "banana", "apple"),
    *("sandwich", "orange", "broccoli", "carrot", "hot dog", "pizza", "donut", "cake", "chair", "couch"),
    *("potted plant", "bed", "dining table", "toilet", "tv", "laptop", "mouse", "remote", "keyboard"),
    *("cell phone", "microwave", "oven", "toaster", "sink", "refrigerator", "book", "clock", "vase"),
    *("scissors", "teddy bear", "hair drier", "toothbrush"),
)
"""COCO's 80 classes in the order of a detector's outputs."""

_GENEVAL_NAMES = {"mouse": "computer mouse", "remote": "tv remote", "keyboard": "computer keyboard"}
"""COCO names to GenEval's names where they differ (GenEval's object_names.txt)."""

CLASS_NAMES = tuple(_GENEVAL_NAMES.get(name, name) for name in COCO_NAMES)
"""COCO_NAMES with GenEval's names."""


def _known(name: str) -> str:
    if name in CLASS_NAMES:
        return name
    hint = f" (GenEval's name is {_GENEVAL_NAMES[name]!r})" if name in _GENEVAL_NAMES else ""
    raise PydanticCustomError("coco_class", f"must be one of COCO's 80 classes{hint}")


class Unwanted(Section):
    """A clause of `exclude`: fewer than `count` objects of a class."""

    class_name: Annotated[str, AfterValidator(_known), Field(alias="class")]
    """Class of the objects, from CLASS_NAMES."""
    count: PositiveInt
    """Number of objects that is too many, at least 1."""


class Wanted(Unwanted):
    """A clause of `include`: at least `count` objects of a class, optionally with a colour or a position."""

    colour: Annotated[Literal[COLOURS] | None, Field(alias="color")] = None  # type: ignore[valid-type]
    """Colour of the objects, from COLOURS; None: any colour."""
    position: Annotated[tuple[Literal[RELATIONS], int], Field(strict=False)] | None = None  # type: ignore[valid-type]
    """Relation from RELATIONS, and number of the earlier clause it refers to; None: any position."""


class GenEvalRecord(Section):
    """Record of a prompt, by which its images are judged."""

    tag: Literal[TAGS]  # type: ignore[valid-type]
    """Task, from TAGS; counting has a separate threshold."""
    include: Annotated[tuple[Wanted, ...], Field(strict=False, min_length=1)]
    """Clauses that the image must meet."""
    exclude: Annotated[tuple[Unwanted, ...], Field(strict=False)] = ()
    """Clauses that limit the objects of a class."""
    prompt: str = ""
    """Text of the prompt; optional, no rule reads it."""


def parse_record(value: object) -> GenEvalRecord:
    """Parse a line of evaluation_metadata.jsonl.

    Unlike the original, it rejects unknown classes and keys. The original never finds a misspelt class and ignores a
    misspelt key.

    Args:
        value: The JSON object.

    Raises:
        ValueError: The record is invalid; the message gives key, rule and value of each fault.
    """
    record, problems = _read(value)
    if record is None:
        raise ValueError("; ".join(problems))
    return record


def record_problems(value: object) -> list[str]:
    """Faults of a prompt's record, each with key, rule and value; empty for a valid record.

    Includes contradictions between `include` and `exclude`: `parse_record` accepts them, but no image can meet them.
    """
    record, problems = _read(value)
    return problems if record is None else list(map(str, _contradictions(record)))


def _read(value: object) -> tuple[GenEvalRecord | None, list[str]]:
    """The record, or None and the faults of its form."""
    if not isinstance(value, Mapping):
        return None, [f"must be an object, got {show(value)}"]
    try:
        record = GenEvalRecord.model_validate(value)
    except ValidationError as error:
        return None, list(map(str, schema_problems(error, value, GenEvalRecord)))
    rule = "must name an earlier clause by its number from 0, got"
    faults = [
        str(Problem(("include", number, "position"), f"{rule} {clause.position[1]}"))
        for number, clause in enumerate(record.include)
        if clause.position and not 0 <= clause.position[1] < number
    ]
    return (None, faults) if faults else (record, [])


def _contradictions(record: GenEvalRecord) -> Iterator[Problem]:
    wanted: dict[str, int] = {}
    for clause in record.include:
        wanted[clause.class_name] = max(wanted.get(clause.class_name, 0), clause.count)
    for number, limit in enumerate(record.exclude):
        if limit.count <= (most := wanted.get(limit.class_name, 0)):
            yield Problem(
                ("exclude", number),
                f"forbids {limit.count} of {limit.class_name!r}, but include asks for {most}: no image can be right",
            )
