"""Our own prompts: valid records, wordings that say what the record demands, and nothing twice too early."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from chunk_grpo.prompts.coco import coco_prompts
from chunk_grpo.prompts.geneval import read_geneval
from chunk_grpo.prompts.rows import PromptRow
from chunk_grpo.scorers.geneval.records import CLASS_NAMES, COLOURS, TAGS, record_problems
from tests.prompts.files import STRICT

NUMBERS = {"two": 2, "three": 3, "four": 4}
BACK = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}
PLURALS = {name: f"{name}s" for name in CLASS_NAMES} | {
    "person": "people", "sheep": "sheep", "knife": "knives", "computer mouse": "computer mice",
    "skis": "pairs of skis", "scissors": "pairs of scissors", "broccoli": "heads of broccoli", "bus": "buses",
    "bench": "benches", "couch": "couches", "sandwich": "sandwiches", "wine glass": "wine glasses",
    "toothbrush": "toothbrushes",
}  # fmt: skip


def content(row: PromptRow) -> tuple[object, ...]:
    """Objects that the image must show, independent of wording and order."""
    entries = [(e["class"], e["count"], e.get("color")) for e in row.metadata["include"]]  # type: ignore[attr-defined]
    if row.category != "position":
        return (row.category, *sorted(entries, key=str))
    relation = row.metadata["include"][1]["position"][0]  # type: ignore[index]
    target, placed = entries[0][0], entries[1][0]
    if relation in ("right of", "below"):
        relation, target, placed = BACK[relation], placed, target
    return (row.category, placed, relation, target)


def named(words: str) -> tuple[str, str | None]:
    """Class and colour of "a red car"; the longest class that the words end with."""
    thing = max((c for c in CLASS_NAMES if words.endswith(c)), key=len)
    before = words.removesuffix(thing).split()
    assert before[0] == ("an" if words.split()[1][0] in "aeiou" else "a")
    color = before[-1] if before[-1] in COLOURS else None
    measure = {"skis": ["pair", "of"], "scissors": ["pair", "of"], "broccoli": ["head", "of"]}.get(thing, [])
    assert before[1 : -1 if color else None] == measure
    return thing, color


class TestRecords:
    def test_the_tags_come_in_turn(self) -> None:
        rows = coco_prompts(14, 0)
        assert [row.category for row in rows] == [*TAGS, *TAGS, *TAGS[:2]]
        assert [(row.line, row.source) for row in rows] == [(line, "coco") for line in range(1, 15)]

    def test_every_record_is_valid_and_is_read_back_as_geneval_reads_it(self, tmp_path: Path) -> None:
        rows = coco_prompts(3000, 1, "train")
        assert not [row.text for row in rows if record_problems(row.metadata)]
        order = ["tag", "include", "exclude", "prompt"]
        assert all(list(row.metadata) == [key for key in order if key in row.metadata] for row in rows)
        texts = {row.text: row for row in rows}
        path = tmp_path / "evaluation_metadata.jsonl"
        path.write_text("".join(json.dumps(row.metadata) + "\n" for row in texts.values()))
        read = read_geneval(path, STRICT).rows
        assert [(r.text, r.category, r.metadata) for r in read] == [
            (r.text, r.category, r.metadata) for r in texts.values()
        ]


class TestContents:
    def test_counting_forbids_one_more(self) -> None:
        counted = set()
        for row in coco_prompts(1440, 3)[2::6]:
            (wanted,), (forbidden,) = row.metadata["include"], row.metadata["exclude"]  # type: ignore[misc]
            assert forbidden == {"class": wanted["class"], "count": wanted["count"] + 1}
            match = re.search(r"\b(two|three|four) (.+?)(?= in (?:full view|it)$|$)", row.text)
            assert match is not None, row.text
            assert (NUMBERS[match[1]], match[2]) == (wanted["count"], PLURALS[wanted["class"]])
            counted.add((wanted["class"], wanted["count"]))
        assert counted == {(name, number) for name in CLASS_NAMES for number in NUMBERS.values()}

    def test_a_position_says_what_its_record_says(self) -> None:
        seen = Counter()
        for row in coco_prompts(2400, 5)[4::6]:
            match = re.search(
                r"(an? .+?),?(?: is| placed)? (?:to the )?(left of|right of|above|below) (an? .+)", row.text
            )
            assert match is not None, row.text
            start = r"^(a clear picture of|an image that shows|a scene in which) "
            placed, target = named(re.sub(start, "", match[1]))[0], named(match[3])[0]
            assert row.metadata["include"] == [
                {"class": target, "count": 1},
                {"class": placed, "count": 1, "position": [match[2], 0]},
            ], row.text
            seen[match[2]] += 1
        assert min(seen[relation] for relation in BACK) > 60

    @pytest.mark.parametrize("tag", ["two_object", "color_attr"])
    def test_a_pair_differs_and_stands_in_the_prompt_as_in_the_record(self, tag: str) -> None:
        """Nobody has a colour: it could be read as the colour of the skin."""
        for row in coco_prompts(3000, 6)[TAGS.index(tag) :: 6]:
            match = re.search(r"(an? [^,]+?) (?:together with|and) (an? .+?)(?: in one scene)?$", row.text)
            assert match is not None, row.text
            first = re.sub(r"^(a clear picture of|an image that shows|a scene with both) ", "", match[1])
            things, colors = zip(named(first), named(match[2]), strict=True)
            said = [{"class": thing, "count": 1, "color": color} for thing, color in zip(things, colors, strict=True)]
            assert [{"color": None, **each} for each in row.metadata["include"]] == said, row.text  # type: ignore[attr-defined]
            assert things[0] != things[1]
            if tag == "two_object":
                assert colors == (None, None)
            else:
                assert colors[0] != colors[1] and "person" not in things


class TestDrawing:
    def test_seed_determines_the_prompts(self) -> None:
        first, second = ({row.text for row in coco_prompts(600, seed)} for seed in (8, 9))
        assert {row.text for row in coco_prompts(600, 8)} == first
        assert len(first & second) < 150

    def test_the_first_prompts_of_a_seed_stay(self) -> None:
        """Another version of the package that draws others would change what a seed means."""
        assert [row.text for row in coco_prompts(6, 0)] == FIRST
        assert coco_prompts(0, 0) == []
        with pytest.raises(ValueError, match="count must be >= 0, got -1"):
            coco_prompts(-1, 0)

    @pytest.mark.parametrize(("part", "distinct"), [("all", 80), ("train", 64), ("eval", 16)])
    def test_no_content_repeats_before_all_were_drawn(self, part: str, distinct: int) -> None:
        """First every content, then every content in its other three wordings."""
        rows = coco_prompts(6 * 400, 11, part)[::6]  # type: ignore[arg-type]
        for start in range(0, 4 * distinct, distinct):
            assert len({content(row) for row in rows[start : start + distinct]}) == distinct
        assert len({row.text for row in rows[: 4 * distinct]}) == 4 * distinct

    def test_train_and_eval_share_no_content(self) -> None:
        train = {content(row) for row in coco_prompts(12_000, 13, "train")}
        held_out = {content(row) for row in coco_prompts(6_000, 14, "eval")}
        assert train and held_out and not train & held_out


FIRST = [
    "an airplane in full view",
    "a clear picture of a stop sign and an orange",
    "four horses in full view",
    "a clear picture of a white bench",
    "a zebra, placed below a wine glass",
    "a green toilet and a blue umbrella in one scene",
]
