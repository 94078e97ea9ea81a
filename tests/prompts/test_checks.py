"""Prompts that break a rule: refused together, or dropped, changed or kept and reported."""

import json
from pathlib import Path

import pytest

from chunk_grpo.config.prompts import PromptChecks
from chunk_grpo.errors import DataError
from chunk_grpo.prompts.checks import check_lengths, drop_long
from chunk_grpo.prompts.rows import CheckedPrompts, PromptRow
from tests.prompts import files
from tests.prompts.files import LENIENT, STRICT


def write(folder: Path, prompts: list[str]) -> Path:
    return files.write(folder / "p.json", json.dumps(prompts))


def read(folder: Path, prompts: list[str], rules: PromptChecks) -> CheckedPrompts:
    return files.checked(write(folder, prompts), rules)


def refused(folder: Path, prompts: list[str], rules: PromptChecks = STRICT) -> list[str]:
    return files.refused(write(folder, prompts), rules).splitlines()


CHARACTERS = [
    *("\0", "\x1f", "\x7f", "\x85", "\u2028", "\u2029", "\ufeff", "\uffff"),
    *("\u200b", "\u2060", "\u202e", "\u2066", "\ufffd"),
]


class TestRefusing:
    def test_all_problems_are_reported_together(self, tmp_path: Path) -> None:
        assert refused(tmp_path, ["a cat", "", "a dog ", "a cat", "a\x07b", "bad \ufffd"]) == [
            "5 problems (empty: 1, whitespace around the prompt: 1, duplicates: 1, invalid characters: 2)",
            "  row 2: an empty prompt",
            "  row 3: whitespace before or after the prompt: 'a dog '",
            "  row 4: the same prompt as in row 1: 'a cat'",
            "  row 5: U+0007 at character 2: 'a\\x07b'",
            "  row 6: U+FFFD (a sign of a wrong encoding) at character 5: 'bad \ufffd'",
            f"{tmp_path / 'p.json'}: 5 problems (empty: 1, whitespace around the prompt: 1, duplicates: 1, invalid "
            "characters: 2), listed above. Fix the file, or a copy of it, or set `prompts.checks.characters: drop` or "
            "`keep`; `prompts.checks.duplicates: drop` (all but the first) or `keep`; "
            "`prompts.checks.empty: drop`; `prompts.checks.spaces: strip`, `drop` or `keep`.",
        ]

    def test_twenty_are_shown_and_the_others_counted(self, tmp_path: Path) -> None:
        lines = refused(tmp_path, [f" {number}" for number in range(15)] + [""] * 15)
        assert lines[0] == "30 problems (whitespace around the prompt: 15, empty: 15)"
        assert [line.split(":")[0] for line in lines[1:21]] == [f"  row {number}" for number in range(1, 21)]
        assert lines[21] == "  and 10 more"
        assert refused(tmp_path, [""] * 20)[21].startswith(f"{tmp_path / 'p.json'}: 20 problems")

    def test_one_is_told_in_one_line(self, tmp_path: Path) -> None:
        text = "x" * 59
        assert refused(tmp_path, ["x" * 500 + " "]) == [
            f"row 1: whitespace before or after the prompt: '{text}.... Fix the file, or a copy of it, or set "
            "`prompts.checks.spaces: strip`, `drop` or `keep`."
        ]

    @pytest.mark.parametrize("character", [*CHARACTERS, "\ud800"])
    def test_invalid_characters(self, character: str, tmp_path: Path) -> None:
        name = f"U+{ord(character):04X}"
        assert name in refused(tmp_path, [f"a{character}b"], LENIENT)[0]
        path = files.write(tmp_path / "o.json", json.dumps([{"prompt": "a", "category": character}]))
        assert files.refused(path, LENIENT).startswith(f"row 1: category: {name}")

    def test_lone_surrogate_cannot_be_kept(self, tmp_path: Path) -> None:
        """UTF-8 has no form for it; it is a record that cannot be read."""
        keep = LENIENT.model_copy(update={"characters": "keep"})
        assert "half a character" in refused(tmp_path, ["a", "a\ud800b"], keep)[0]
        drop = keep.model_copy(update={"records": "drop"})
        assert [row.text for row in read(tmp_path, ["a", "a\ud800b"], drop).rows] == ["a"]

    def test_letters_of_all_scripts_are_valid(self, tmp_path: Path) -> None:
        texts = ["猫", "कि\u200dख", "👩\u200d🎨", "a\u00a0b", "ﷺ", "e\u0301"]
        assert [row.text for row in read(tmp_path, texts, STRICT).rows] == texts


SPACES, CHARACTER = "whitespace around the prompt", "invalid characters"


@pytest.mark.parametrize(
    ("prompts", "rule", "kept", "finding"),
    [
        (["a", "a\x1fb"], {"characters": "drop"}, ["a"], (CHARACTER, "drop", (2,))),
        (["a", "a\x1fb"], {"characters": "keep"}, ["a", "a\x1fb"], (CHARACTER, "keep", (2,))),
        (["a", "b", "a", "a"], {"duplicates": "drop"}, ["a", "b"], ("duplicates", "drop", (3, 4))),
        (["a", "b", "a", "a"], {"duplicates": "keep"}, ["a", "b", "a", "a"], ("duplicates", "keep", (3, 4))),
        (["a", "", " \t", "b"], {"empty": "drop"}, ["a", "b"], ("empty", "drop", (2, 3))),
        (["\ta\u00a0", "b\n", "c"], {"spaces": "strip"}, ["a", "b", "c"], (SPACES, "strip", (1, 2))),
        ([" a", "b"], {"spaces": "keep"}, [" a", "b"], (SPACES, "keep", (1,))),
        ([" a", "b"], {"spaces": "drop"}, ["b"], (SPACES, "drop", (1,))),
    ],
)
def test_prompts_that_break_a_rule_are_dropped_changed_or_kept(prompts, rule, kept, finding, tmp_path):
    found = read(tmp_path, prompts, STRICT.model_copy(update=rule))
    assert [row.text for row in found.rows] == kept
    assert [(f.what, f.action, f.lines) for f in found.report.findings] == [finding]
    assert (found.report.read, found.report.kept) == (len(prompts), len(kept))


class TestDuplicates:
    @pytest.mark.parametrize("other", ["caf\u00e9 bar", "cafe\u0301 bar", "caf\u00e9   bar", "caf\u00e9\u00a0bar"])
    def test_duplicates_ignore_unicode_composition_and_whitespace(self, other: str, tmp_path: Path) -> None:
        assert "row 2: the same prompt as in row 1" in refused(tmp_path, ["caf\u00e9 bar", other])[0]

    def test_different_letters_are_no_duplicates(self, tmp_path: Path) -> None:
        assert len(read(tmp_path, ["A cat", "a cat", "a cat."], STRICT).rows) == 3

    def test_leading_space_hides_no_duplicate(self, tmp_path: Path) -> None:
        for spaces in ("strip", "keep"):
            rules = LENIENT.model_copy(update={"spaces": spaces})
            assert [row.line for row in read(tmp_path, ["a", " a"], rules).rows] == [1]


class TestOtherRules:
    def test_a_file_of_which_nothing_is_left_is_refused(self, tmp_path: Path) -> None:
        assert refused(tmp_path, ["", " "], LENIENT) == [
            "must hold prompts, got 2 rows, all dropped",
            f"  empty: 2 dropped, the first: {tmp_path / 'p.json'}, row 1: an empty prompt",
            "Fix the file, or the setting that is named.",
        ]

    def test_missing_prompt_field_error_lists_existing_fields(self, tmp_path: Path) -> None:
        rules = LENIENT.model_copy(update={"records": "drop"})
        path = files.write(tmp_path / "p.jsonl", '{"caption": "a red circle"}\n{"caption": "a blue square"}\n')
        assert files.refused(path, rules).splitlines() == [
            "must hold prompts, got 2 lines, all dropped",
            f"  no prompt: 2 dropped, the first: {path}, line 1: needs one field 'prompt' with the prompt, got none "
            "among the fields 'caption'; name it by `prompt_field`",
            "Fix the file, or the setting that is named.",
        ]
        assert files.read(path, rules, prompt_field="caption") == ["a red circle", "a blue square"]

    def test_a_line_feed_that_is_kept_is_an_invalid_character(self, tmp_path: Path) -> None:
        (said,) = refused(tmp_path, ["a\n"], STRICT.model_copy(update={"spaces": "keep"}))
        assert said.startswith("row 1: U+000A (a line feed) at character 2: 'a\\n'. Fix the file")

    def test_records_that_cannot_be_read_are_dropped(self, tmp_path: Path) -> None:
        lines = ['{"prompt": "a"}', '{"prompt": 3}', "{", '{"text": "b"}', '"c"', json.dumps("x" * 10_001)]
        path = files.write(tmp_path / "p.jsonl", "\n".join(lines))
        assert files.refused(path).startswith("4 problems (no prompt: 3, longer than 10,000 characters: 1)")
        found = files.checked(path, STRICT.model_copy(update={"records": "drop"}))
        assert [row.text for row in found.rows] == ["a", "c"]
        assert [(f.what, f.lines) for f in found.report.findings] == [
            ("no prompt", (2, 3, 4)),
            ("longer than 10,000 characters", (6,)),
        ]
        assert (found.report.read, found.report.kept) == (6, 2)

    def test_a_category_that_was_asked_for_may_be_a_reason_to_drop(self, tmp_path: Path) -> None:
        path = files.write(tmp_path / "p.jsonl", '{"prompt": "a", "k": 1.5}\n{"prompt": "b", "k": "x"}')
        found = files.checked(path, STRICT.model_copy(update={"records": "drop"}), category_field="k")
        assert [(row.text, row.category) for row in found.rows] == [("b", "x")]


def words(text: str) -> int:
    return len(text.split())


LIMITS = {"clip": (words, 2), "t5": (words, 3)}


class TestLengths:
    def test_long_prompts_are_kept_and_reported_per_encoder(self, tmp_path: Path) -> None:
        found = read(tmp_path, ["a b", "a", "a b c", "a b c d", "a"], LENIENT)
        report = check_lengths(found.rows[::-1], found.report, LENIENT, LIMITS)
        assert report is not None
        assert [(f.what, f.action, f.lines) for f in report.findings] == [
            ("duplicates", "drop", (5,)),
            ("longer than clip's 2 tokens", "keep", (3, 4)),
            ("longer than t5's 3 tokens", "keep", (4,)),
        ]
        assert report.findings[2].messages == ("4 tokens of t5, which takes 3: 'a b c d'",)
        used = found.first(2)
        assert check_lengths(used.rows, used.report, STRICT, LIMITS) == used.report

    def test_long_prompts_are_refused_together(self, tmp_path: Path) -> None:
        found = read(tmp_path, ["a b c d", "a", "a b c"], STRICT)
        with pytest.raises(DataError) as caught:
            check_lengths(found.rows[::-1], found.report, STRICT, LIMITS)
        header, *lines, _ = str(caught.value).splitlines()
        assert header.endswith("3 problems (longer than clip's 2 tokens: 2, longer than t5's 3 tokens: 1)")
        assert lines == [
            "  row 1: 4 tokens of clip, which takes 2: 'a b c d'",
            "  row 1: 4 tokens of t5, which takes 3: 'a b c d'",
            "  row 3: 3 tokens of clip, which takes 2: 'a b c'",
        ]

    def test_long_prompts_are_dropped_before_selection(self, tmp_path: Path) -> None:
        rules = LENIENT.model_copy(update={"too_long": "drop"})
        found = drop_long(read(tmp_path, ["a b c d", "a", "a b", "a b c"], rules), rules, LIMITS)
        assert [row.text for row in found.rows] == ["a", "a b"]
        assert [(f.what, f.action, f.lines) for f in found.report.findings] == [
            ("longer than clip's 2 tokens", "drop", (1, 4)),
            ("longer than t5's 3 tokens", "drop", (1,)),
        ]
        assert (found.report.read, found.report.kept, found.report.used) == (4, 2, 2)
        assert check_lengths(found.rows, found.report, rules, LIMITS) == found.report
        with pytest.raises(DataError, match="all 1 prompts have more tokens than the text encoders take"):
            drop_long(read(tmp_path, ["a b c"], rules), rules, LIMITS)

    def test_what_cannot_be_dropped_is_kept(self) -> None:
        rules = LENIENT.model_copy(update={"too_long": "drop"})
        report = check_lengths([PromptRow("a b c", "", {}, 1, "coco")], None, rules, LIMITS)
        assert report is not None
        assert [f.action for f in report.findings] == ["keep"]

    def test_generated_prompts_are_reported_by_number(self) -> None:
        rows = [PromptRow(text, "", {}, number, "coco") for number, text in enumerate(("a", "a b c", "a"), 1)]
        report = check_lengths(rows, None, LENIENT, LIMITS)
        assert report is not None
        assert report.lines()[1].endswith("longer than clip's 2 tokens: 1 kept as they are (prompt 2)")
        assert check_lengths(rows[:1], None, LENIENT, LIMITS) is None
        with pytest.raises(DataError, match="prompt 2: 3 tokens of clip, which takes 2: 'a b c'\\. Set"):
            check_lengths(rows, None, STRICT, LIMITS)


class TestReport:
    def test_long_lists_are_cut_and_counted(self, tmp_path: Path) -> None:
        report = read(tmp_path, ["a"] * 31, LENIENT).report
        shown = list(range(2, 22))
        assert report.lines()[1].endswith(f"30 dropped (row {', '.join(map(str, shown))} and 10 more)")
        source = str(tmp_path / "p.json")
        finding = {"what": "duplicates", "action": "drop", "source": source, "count": 30, "first": shown}
        finding["examples"] = ["the same prompt as in row 1: 'a'"] * 20
        content = {"sources": [source], "unit": "row", "read": 31, "kept": 1, "used": 1}
        assert json.dumps(report.as_json()) == json.dumps(content | {"findings": [finding], "notes": []})
