"""WISE's two protocols: what an answer must look like, the score of an image, and the categories of the prompts.

Facts from PKU-YuanGroup/WISE at eb51174: `legacy` is WISE_legacy/gpt_eval.py and WISE_legacy/Calculate.py, the protocol
of the paper (arXiv 2503.07265); `verified` is vllm_eval.py and calculate_verified.py of April 2026. They ask other
questions of other prompts, so their numbers do not compare.

Parsing is stricter than the original's, which takes the first digit after a label wherever it stands, so that it reads
10 as 1 and lets 3 to 9 pass, and which also takes bare numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

ProtocolName: TypeAlias = Literal["legacy", "verified"]

NUM_PROMPTS = 1000
"""Ids 1 to 1000 in both protocols."""


@dataclass(frozen=True)
class Protocol:
    """What distinguishes the two.

    Attributes:
        labels: Of the answer's lines, to the names of their scores.
        maximum: Of each score; the least is 0.
        weights: Of the scores in the image's value, before it is divided by the maximum.
        max_tokens: Of an answer.
        last_ids: Category to the id of its last prompt; the first follows the category before it. In the original's
            Overall a category weighs its share of the ids, so that Overall is the mean of all of them.
    """

    labels: Mapping[str, str]
    maximum: int
    weights: Mapping[str, float]
    max_tokens: int
    last_ids: Mapping[str, int]


PROTOCOLS: Mapping[ProtocolName, Protocol] = {
    "legacy": Protocol(
        labels={"consistency": "consistency", "realism": "realism", "aesthetic quality": "aesthetic"},
        maximum=2,
        # WiScore = (0.7 C + 0.2 R + 0.1 A) / 2; Calculate.py, calculate_wiscore.
        weights={"consistency": 0.7, "realism": 0.2, "aesthetic": 0.1},
        max_tokens=2000,
        last_ids={
            "culture": 400,
            "time": 567,
            "space": 700,
            "biology": 800,
            "physics": 900,
            "chemistry": 1000,
        },
    ),
    "verified": Protocol(
        labels={"score": "score"},
        maximum=1,
        weights={"score": 1.0},
        max_tokens=500,
        last_ids={
            "culture": 400,
            "time": 520,
            "space": 640,
            "biology": 760,
            "physics": 880,
            "chemistry": 1000,
        },
    ),
}

# `Realism: 2`, and bold: `**Realism:** 2`, `**Realism**: 2`, `**Realism: 2**`.
_LINE = re.compile(r"(?:\*\*)?([a-z ]+?)(?:\*\*)?\s*[:：]\s*(?:\*\*)?\s*(-?\d+)(?:\*\*)?", re.IGNORECASE)


def without_thoughts(answer: str) -> str:
    """An answer without what the judge thought aloud before it, up to </think>."""
    return answer.rpartition("</think>")[2].strip()


def parse_answer(protocol: ProtocolName, answer: str) -> dict[str, int]:
    """The scores of an answer.

    Args:
        protocol: Whose form it must have: one line a label, in any order, each with a whole number.
        answer: The judge's words, without its thoughts.

    Returns:
        Name to score: consistency, realism and aesthetic in 0 to 2, or score in 0 to 1.

    Raises:
        ValueError: Anything else; a number out of its range is never moved into it.
    """
    rules = PROTOCOLS[protocol]
    scores: dict[str, int] = {}
    for line in filter(None, map(str.strip, answer.splitlines())):
        found = _LINE.fullmatch(line)
        label = found[1].strip().lower() if found else ""
        if found is None or label not in rules.labels:
            raise ValueError(f"the line {line[:60]!r} is none of {_lines(rules)}")
        name, score = rules.labels[label], int(found[2])
        if name in scores:
            raise ValueError(f"{label} is there twice")
        if not 0 <= score <= rules.maximum:
            raise ValueError(f"{label} must be 0 to {rules.maximum}, got {score}")
        scores[name] = score
    missing = [label for label, name in rules.labels.items() if name not in scores]
    if missing:
        raise ValueError(f"no line for {', '.join(missing)}")
    return scores


def _lines(rules: Protocol) -> str:
    return ", ".join(f"`{label.title()}: 0 to {rules.maximum}`" for label in rules.labels)


def image_value(protocol: ProtocolName, scores: Mapping[str, int]) -> float:
    """The value of an image in [0, 1]: WiScore (legacy), or right or wrong (verified)."""
    rules = PROTOCOLS[protocol]
    return sum(weight * scores[name] for name, weight in rules.weights.items()) / rules.maximum


def category_of(protocol: ProtocolName, wise_id: int) -> str:
    """The category of a prompt: by its id, as the original counts; its JSON's names of categories vary.

    Raises:
        ValueError: No such id.
    """
    if not 1 <= wise_id <= NUM_PROMPTS:
        raise ValueError(f"wise_id must be 1 to {NUM_PROMPTS}, got {wise_id}")
    return next(name for name, last in PROTOCOLS[protocol].last_ids.items() if wise_id <= last)
