"""Questions about a prompt's images, in its metadata: {"questions": [{"id": 1, "question": Q, "parents": []}, ...]}."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

FIELD = "questions"
"""Key of the questions in the metadata."""


@dataclass(frozen=True)
class ListedQuestion:
    """A question that yes or no answers."""

    id: int
    """Number of the question within its prompt."""
    text: str
    """Text of the question."""
    parents: tuple[int, ...]
    """Numbers of the questions that must be answered yes for this one to count."""


def parse_questions(metadata: Mapping[str, object]) -> tuple[ListedQuestion, ...]:
    """Questions of a prompt's metadata, in their order; ValueError names a malformed one and the rule.

    Other fields of the metadata and of a question do not matter.
    """
    listed = metadata.get(FIELD)
    if not isinstance(listed, list) or not listed:
        raise ValueError(f"needs the field {FIELD!r} with a list of questions, got {listed!r}")
    questions = tuple(_parse(number, value) for number, value in enumerate(listed, start=1))
    ids = [question.id for question in questions]
    for question in questions:
        if ids.count(question.id) > 1:
            raise ValueError(f"{FIELD}: the id {question.id} occurs {ids.count(question.id)} times")
        for parent in question.parents:
            if parent not in ids or parent == question.id:
                raise ValueError(
                    f"{FIELD}: question {question.id}: parents must be ids of other questions, got {parent}"
                )
    return questions


def _parse(number: int, value: object) -> ListedQuestion:
    place = f"{FIELD}: entry {number}"
    if not isinstance(value, Mapping):
        raise ValueError(f"{place} must be an object, got {value!r}")
    identity, text, parents = value.get("id"), value.get("question"), value.get("parents", [])
    if not _is_whole(identity):
        raise ValueError(f"{place}: id must be a whole number, got {identity!r}")
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{place}: question must be a text, got {text!r}")
    if not isinstance(parents, list) or not all(map(_is_whole, parents)):
        raise ValueError(f"{place}: parents must be a list of whole numbers, got {parents!r}")
    return ListedQuestion(int(str(identity)), text, tuple(parents))


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
