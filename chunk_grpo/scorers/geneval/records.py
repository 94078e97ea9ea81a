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
"""Prompts of each tag in the official file, 553 together."""

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


def _known(name: str) -> str:
    if name in CLASS_NAMES:
        return name
    hint = f" (GenEval's name is {_GENEVAL_NAMES[name]!r})" if name in _GENEVAL_NAMES else ""
    raise PydanticCustomError("coco_class", f"must be one of COCO's 80 classes{hint}")


class Unwanted(Section):
    """A clause of `exclude`: fewer than `count` objects of a class.

    Attributes:
        class_name: One of CLASS_NAMES.
        count: At least 1.
    """

    class_name: Annotated[str, AfterValidator(_known), Field(alias="class")]
    count: PositiveInt


class Wanted(Unwanted):
    """A clause of `include`: at least `count` objects of a class, of a colour or at a place.

    Attributes:
        colour: One of COLOURS; None: any.
        position: One of RELATIONS and the number of an earlier clause, from whose objects they lie so; None: anywhere.
    """

    colour: Annotated[Literal[COLOURS] | None, Field(alias="color")] = None  # type: ignore[valid-type]
    position: Annotated[tuple[Literal[RELATIONS], int], Field(strict=False)] | None = None  # type: ignore[valid-type]


class GenEvalRecord(Section):
    """What a picture is judged by.

    Attributes:
        tag: One of TAGS; counting has a threshold of its own.
        include: Every one must be met.
        exclude: None may be broken.
        prompt: What the picture was drawn from; no rule reads it, so that it may be left out.
    """

    tag: Literal[TAGS]  # type: ignore[valid-type]
    include: Annotated[tuple[Wanted, ...], Field(strict=False, min_length=1)]
    exclude: Annotated[tuple[Unwanted, ...], Field(strict=False)] = ()
    prompt: str = ""


def parse_record(value: object) -> GenEvalRecord:
    """Read a line of evaluation_metadata.jsonl.

    The original takes whatever it is given: a misspelt class is never found and a misspelt key asks for nothing.
    Here both are refused.

    Args:
        value: The JSON object.

    Raises:
        ValueError: It is no such record; tells key, rule and value of each fault.
    """
    problems = _form_problems(value)
    if problems:
        raise ValueError("; ".join(problems))
    return GenEvalRecord.model_validate(value)


def record_problems(value: object) -> list[str]:
    """What is wrong with a prompt's record: key, rule and value of each fault; empty for a good one.

    Also where it demands what it forbids, which the benchmark's rules can judge, and no image can meet.
    """
    problems = _form_problems(value)
    return problems or [str(problem) for problem in _contradictions(GenEvalRecord.model_validate(value))]


def _form_problems(value: object) -> list[str]:
    if not isinstance(value, Mapping):
        return [f"must be an object, got {show(value)}"]
    try:
        record = GenEvalRecord.model_validate(value)
    except ValidationError as error:
        return [str(problem) for problem in schema_problems(error, value, GenEvalRecord)]
    return [
        str(
            Problem(
                ("include", number, "position"),
                f"must name an earlier clause by its number from 0, got {clause.position[1]}",
            )
        )
        for number, clause in enumerate(record.include)
        if clause.position and not 0 <= clause.position[1] < number
    ]


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
