"""GenEval's prompts: evaluation_metadata.jsonl, in which each line says what the image must and must not show.

A record: {"tag": T, "include": [{"class": C, "count": N, "color": K, "position": [R, I]}, ...],
"exclude": [{"class": C, "count": N}, ...], "prompt": P}. `color`, `position` and `exclude` may be left out. The image
is right if each entry of `include` is there `count` times at least, in its colour, at its place relative to entry I,
which stands before it, and no entry of `exclude` is there `count` times. From djghosh13/geneval:
prompts/create_prompts.py (the records), prompts/object_names.txt (the classes), evaluation/evaluate_images.py (their
meaning).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from chunk_grpo.artifacts import Location
from chunk_grpo.prompts.checks import TokenCounts, check_prompts
from chunk_grpo.prompts.content import INVALID, decoded, json_lines, read_bytes
from chunk_grpo.prompts.findings import Findings, PromptRules, beginning
from chunk_grpo.prompts.rows import CheckedPrompts, PromptRow
from chunk_grpo.scorers.geneval.records import CLASS_NAMES, COLOURS, RELATIONS, TAGS

OFFICIAL_COUNTS: Mapping[str, int] = {
    "single_object": 80,
    "two_object": 99,
    "counting": 80,
    "colors": 94,
    "position": 100,
    "color_attr": 100,
}
"""Prompts of each tag in the official file, 553 together."""


def read_geneval(location: Location, rules: PromptRules, count_tokens: TokenCounts) -> CheckedPrompts:
    """Read a file in the format of evaluation_metadata.jsonl.

    Args:
        location: path or URL.
        rules: what to do with prompts that may be a mistake.
        count_tokens: of the text encoders; may be empty.

    Returns:
        The prompts; category is the tag, metadata the whole record. A note tells where the numbers of prompts differ
        from the official ones.

    Raises:
        DataError: the file is missing, or has records that are not of this format, or prompts that are to be refused;
            all of them are told together.
        TransientError: the object store does not answer.
    """
    source = str(location)
    findings = Findings([source])
    rows = []
    for record in json_lines(decoded(read_bytes(location), source, findings), source, findings):
        if record.value is INVALID:
            continue
        if record.value is None:
            rows.append(PromptRow("", "", {}, record.line, source))
            continue
        problems = geneval_problems(record.value)
        for problem in problems:
            findings.add("record", "not GenEval's format", source, record.line, problem)
        if isinstance(record.value, Mapping) and not problems:
            prompt, tag = str(record.value["prompt"]), str(record.value["tag"])
            rows.append(PromptRow(prompt, tag, record.value, record.line, source))
    return check_prompts(rows, rules, count_tokens, findings, _notes(source, rows))


def geneval_problems(record: object) -> list[str]:
    """What is wrong with a record; empty for a good one."""
    if not isinstance(record, Mapping):
        return [f"must be an object, got {beginning(record)}"]
    problems = list(_key_problems(record, "", {"tag", "include", "prompt"}, {"exclude"}))
    if "tag" in record and record["tag"] not in TAGS:
        problems.append(f"tag: must be one of {', '.join(TAGS)}, got {beginning(record['tag'])}")
    if "prompt" in record and not isinstance(record["prompt"], str):
        problems.append(f"prompt: must be text, got {beginning(record['prompt'])}")
    wanted: dict[str, int] = {}
    for name in ("include", "exclude"):
        entries = record.get(name, [])
        if not isinstance(entries, list) or (name == "include" and name in record and not entries):
            problems.append(f"{name}: must be a list of objects, got {beginning(entries)}")
            continue
        for index, entry in enumerate(entries):
            place = f"{name}[{index}]"
            found = list(_entry_problems(entry, place, index, included=name == "include"))
            problems += found
            if found or not isinstance(entry, Mapping):
                continue
            thing, count = str(entry["class"]), int(entry["count"])
            if name == "include":
                wanted[thing] = max(wanted.get(thing, 0), count)
            elif count <= wanted.get(thing, 0):
                problems.append(
                    f"{place}: forbids {count} of {thing!r}, include asks for {wanted[thing]}: no image can be right"
                )
    return problems


def _entry_problems(entry: object, place: str, index: int, *, included: bool) -> Iterable[str]:
    if not isinstance(entry, Mapping):
        yield f"{place}: must be an object, got {beginning(entry)}"
        return
    yield from _key_problems(
        entry, f"{place}.", {"class", "count"}, {"color", "position"} if included else set()
    )
    if "class" in entry and entry["class"] not in CLASS_NAMES:
        yield f"{place}.class: must be one of COCO's 80 classes by GenEval's names, got {beginning(entry['class'])}"
    count = entry.get("count", 1)
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        yield f"{place}.count: must be a whole number >= 1, got {beginning(count)}"
    if included and "color" in entry and entry["color"] not in COLOURS:
        yield f"{place}.color: must be one of {', '.join(COLOURS)}, got {beginning(entry['color'])}"
    if included and "position" in entry:
        yield from _position_problems(entry["position"], f"{place}.position", index)


def _position_problems(position: object, place: str, index: int) -> Iterable[str]:
    if not isinstance(position, list) or len(position) != 2:
        yield f"{place}: must be [relation, number of an entry], got {beginning(position)}"
        return
    relation, target = position
    if relation not in RELATIONS:
        yield f"{place}: the relation must be one of {', '.join(RELATIONS)}, got {beginning(relation)}"
    if not isinstance(target, int) or isinstance(target, bool) or not 0 <= target < index:
        earlier = f"from 0 to {index - 1}" if index else "and there is none before the first"
        yield f"{place}: must name an entry of include before this one, {earlier}, got {beginning(target)}"


def _key_problems(
    record: Mapping[str, object], place: str, needed: set[str], allowed: set[str]
) -> Iterable[str]:
    for key in sorted(needed - record.keys()):
        yield f"{place}{key}: is missing"
    for key in record:
        if key not in needed | allowed:
            yield f"{place}{key}: unknown key; known here: {', '.join(sorted(needed | allowed))}"


def _notes(source: str, rows: Iterable[PromptRow]) -> list[str]:
    counts = Counter(row.category for row in rows if row.category)
    if counts == Counter(OFFICIAL_COUNTS):
        return []
    found = ", ".join(f"{tag} {counts[tag]} ({OFFICIAL_COUNTS[tag]})" for tag in TAGS)
    total = sum(OFFICIAL_COUNTS.values())
    return [
        f"{source}: not GenEval's official {total} prompts, so scores do not compare; here and (there): {found}"
    ]
