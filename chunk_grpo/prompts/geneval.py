"""GenEval's prompts: evaluation_metadata.jsonl, with the requirements on one image per line.

A record: {"tag": T, "include": [{"class": C, "count": N, "color": K, "position": [R, I]}, ...],
"exclude": [{"class": C, "count": N}, ...], "prompt": P}. `color`, `position` and `exclude` are optional. The image
is correct if it shows each entry of `include` at least `count` times, in its colour and in relation R to an earlier
entry I, and shows no entry of `exclude` `count` times. Sources in djghosh13/geneval:
prompts/create_prompts.py (the records), prompts/object_names.txt (the classes), evaluation/evaluate_images.py (their
meaning).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from chunk_grpo.artifacts import Location
from chunk_grpo.config.prompts import PromptChecks
from chunk_grpo.prompts.checks import check_prompts
from chunk_grpo.prompts.findings import Findings
from chunk_grpo.prompts.records import json_lines
from chunk_grpo.prompts.rows import CheckedPrompts, PromptRow
from chunk_grpo.scorers.geneval.records import OFFICIAL_COUNTS, TAGS, record_problems


def read_geneval(location: Location, rules: PromptChecks, count: int | None = None) -> CheckedPrompts:
    """Read a file in the format of evaluation_metadata.jsonl.

    Args:
        location: Path or URL.
        rules: Actions for suspicious prompts.
        count: Number of prompts taken from the beginning; None: all.

    Returns:
        The prompts; category is the tag, metadata the whole record. A note reports counts per tag that differ from
        the official ones.

    Raises:
        DataError: The file is missing, or has records of another format or rejected prompts; one message lists all of
            them.
        TransientError: The object store does not answer.
    """
    source = str(location)
    findings = Findings([source])
    rows = []
    for line, value in json_lines(location):
        if value is None:
            rows.append(PromptRow("", "", {}, line, source))
            continue
        problems = [str(value)] if isinstance(value, ValueError) else record_problems(value)
        if isinstance(value, Mapping) and "prompt" not in value:
            problems.append("prompt: required, but missing")
        for problem in problems:
            findings.add("format", "not GenEval's format", source, line, problem)
        if isinstance(value, Mapping) and not problems:
            rows.append(PromptRow(value["prompt"], value["tag"], value, line, source))
    taken = check_prompts(rows, rules, findings).part(0, count)
    return taken.noted(_notes(source, taken.rows))


def _notes(source: str, rows: Iterable[PromptRow]) -> list[str]:
    counts = Counter(row.category for row in rows)
    if counts == Counter(OFFICIAL_COUNTS):
        return []
    found = ", ".join(f"{tag} {counts[tag]} ({OFFICIAL_COUNTS[tag]})" for tag in TAGS)
    total = sum(OFFICIAL_COUNTS.values())
    return [
        f"{source}: not GenEval's official {total} prompts, so scores do not compare; counts here (official): {found}"
    ]
