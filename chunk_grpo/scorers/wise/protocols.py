"""WISE's two protocols: form of an answer, score of an image, and categories of the prompts.

Source: PKU-YuanGroup/WISE at eb51174. `legacy` is WISE_legacy/gpt_eval.py and WISE_legacy/Calculate.py, the protocol of
the paper (arXiv 2503.07265). `verified` is vllm_eval.py and calculate_verified.py of April 2026. Questions and prompts
differ, so scores of the two protocols do not compare.

Parsing is stricter than the original's. The original takes the first digit after a label anywhere in the text, so it
reads 10 as 1 and accepts 3 to 9; it also accepts bare numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

ProtocolName: TypeAlias = Literal["legacy", "verified"]

NUM_PROMPTS = 1000
"""Number of prompts, with ids 1 to 1000, in both protocols."""


@dataclass(frozen=True)
class Protocol:
    """Parameters of a protocol."""

    labels: Mapping[str, str]
    """Label of an answer's line to the name of its score."""
    maximum: int
    """Maximum of each score; the minimum is 0."""
    weights: Mapping[str, float]
    """Score name to its weight in the image's value, before division by the maximum."""
    max_tokens: int
    """Maximum number of tokens of an answer."""
    last_ids: Mapping[str, int]
    """Category to the id of its last prompt; categories are consecutive. The original's Overall weights a category by
    its share of the ids, so Overall is the mean over all ids."""


_CATEGORIES = ("culture", "time", "space", "biology", "physics", "chemistry")

PROTOCOLS: Mapping[ProtocolName, Protocol] = {
    "legacy": Protocol(
        labels={"consistency": "consistency", "realism": "realism", "aesthetic quality": "aesthetic"},
        maximum=2,
        # WiScore = (0.7 C + 0.2 R + 0.1 A) / 2; Calculate.py, calculate_wiscore.
        weights={"consistency": 0.7, "realism": 0.2, "aesthetic": 0.1},
        max_tokens=2000,
        last_ids=dict(zip(_CATEGORIES, (400, 567, 700, 800, 900, 1000), strict=True)),
    ),
    "verified": Protocol(
        labels={"score": "score"},
        maximum=1,
        weights={"score": 1.0},
        max_tokens=500,
        last_ids=dict(zip(_CATEGORIES, (400, 520, 640, 760, 880, 1000), strict=True)),
    ),
}

# `Realism: 2`, and bold: `**Realism:** 2`, `**Realism**: 2`, `**Realism: 2**`.
_LINE = re.compile(r"(?:\*\*)?([a-z ]+?)(?:\*\*)?\s*[:：]\s*(?:\*\*)?\s*(-?\d+)(?:\*\*)?", re.IGNORECASE)


def parse_answer(protocol: ProtocolName, answer: str) -> dict[str, int]:
    """Scores of an answer without reasoning: consistency, realism and aesthetic in 0 to 2, or score in 0 to 1.

    The answer has one line per label, in any order, each with a whole number. ValueError if it has another form, or a
    number is out of range; numbers are never clipped.
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
            raise ValueError(f"{label} occurs twice")
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
    """Value of an image in [0, 1]: WiScore (legacy), or 1 for right and 0 for wrong (verified)."""
    rules = PROTOCOLS[protocol]
    return sum(weight * scores[name] for name, weight in rules.weights.items()) / rules.maximum


def category_of(protocol: ProtocolName, wise_id: int) -> str:
    """Category of a prompt by its id, as in the original; the category names in its JSON vary."""
    if not 1 <= wise_id <= NUM_PROMPTS:
        raise ValueError(f"wise_id must be 1 to {NUM_PROMPTS}, got {wise_id}")
    return next(name for name, last in PROTOCOLS[protocol].last_ids.items() if wise_id <= last)
