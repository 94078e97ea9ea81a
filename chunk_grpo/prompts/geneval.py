"""GenEval's prompts: evaluation_metadata.jsonl, with the requirements on one image per line.

A record: {"tag": T, "include": [{"class": C, "count": N, "color": K, "position": [R, I]}, ...],
"exclude": [{"class": C, "count": N}, ...], "prompt": P}. `color`, `position` and `exclude` are optional. The image
is correct if it shows each entry of `include` at least `count` times, in its colour and in relation R to an earlier
entry I, and shows no entry of `exclude` `count` times. Sources in djghosh13/geneval:
prompts/create_prompts.py (the records), prompts/object_names.txt (the classes), evaluation/evaluate_images.py (their
meaning).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping

from chunk_grpo.artifacts import Location
from chunk_grpo.config.prompts import PromptChecks
from chunk_grpo.prompts.checks import check_prompts
from chunk_grpo.prompts.findings import Findings
from chunk_grpo.prompts.records import bounded, json_lines
from chunk_grpo.prompts.rows import CheckedPrompts, PromptRow
from chunk_grpo.scorers.geneval.records import OFFICIAL_COUNTS, TAGS, GenEvalRecord, parse_record, record_problems

_OPPOSITE = {"left of": "right of", "above": "below"}
"""Relations that are written the other way round to compare contents."""


def read_geneval(location: Location, rules: PromptChecks, limit: int | None = None) -> CheckedPrompts:
    """Read a file in the format of evaluation_metadata.jsonl, up to `limit` records (None: all).

    The category is the tag, the metadata the whole record.
    """
    source = str(location)
    findings = Findings([source])
    rows: list[PromptRow | None] = []
    for line, value in bounded(itertools.islice(json_lines(location), limit), source):
        if value is None:
            rows.append(PromptRow("", "", {}, line, source))
            continue
        problems = [str(value)] if isinstance(value, ValueError) else record_problems(value)
        if isinstance(value, Mapping) and "prompt" not in value:
            problems.append("prompt: required, but missing")
        if problems:
            findings.add("records", "not GenEval's format", source, line, "; ".join(problems))
        if isinstance(value, Mapping) and not problems:
            rows.append(PromptRow(value["prompt"], value["tag"], value, line, source))
        else:
            rows.append(None)
    return check_prompts(rows, rules, findings)


def read_geneval_benchmark(location: Location, rules: PromptChecks, count: int | None = None) -> CheckedPrompts:
    """`read_geneval` of the first `count` prompts (None: all), with a note if they are not the official ones."""
    taken = read_geneval(location, rules).first(count)
    return taken.noted(_notes(str(location), taken.rows))


def content_key(row: PromptRow) -> Hashable:
    """What a prompt of GenEval asks for; equal for prompts that differ in wording or in the order of objects only."""
    record = parse_record(row.metadata)
    wanted = sorted((clause.class_name, clause.count, clause.colour or "") for clause in record.include)
    excluded = sorted((clause.class_name, clause.count) for clause in record.exclude)
    return tuple(wanted), _relations(record), tuple(excluded)


def _relations(record: GenEvalRecord) -> Hashable:
    """Pairs of clauses with their relation: "a left of b" as "b right of a"."""
    found = []
    for clause in record.include:
        if clause.position is None:
            continue
        relation, number = clause.position
        of = [(one.class_name, one.count, one.colour or "") for one in (clause, record.include[number])]
        if relation in _OPPOSITE:
            relation, of = _OPPOSITE[relation], of[::-1]
        found.append((relation, *of))
    return tuple(sorted(found))


def _notes(source: str, rows: Iterable[PromptRow]) -> list[str]:
    counts = Counter(row.category for row in rows)
    if counts == Counter(OFFICIAL_COUNTS):
        return []
    found = ", ".join(f"{tag} {counts[tag]} ({OFFICIAL_COUNTS[tag]})" for tag in TAGS)
    total = sum(OFFICIAL_COUNTS.values())
    return [
        f"{source}: not GenEval's official {total} prompts, so scores do not compare; counts here (official): {found}"
    ]
