"""Prompts that break a rule: refused together, or dropped, changed or kept and reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chunk_grpo.config.prompts import PromptChecks
from chunk_grpo.errors import DataError
from chunk_grpo.prompts import (
    CheckedPrompts,
    PromptRow,
    PromptSource,
    check_lengths,
    normalized,
    read_prompt_file,
    shared_prompts,
)
from chunk_grpo.prompts.findings import Findings
from tests.prompts.policies import LENIENT, STRICT


def read(folder: Path, lines: list[str], rules: PromptChecks) -> CheckedPrompts:
    path = folder / "p.json"
    path.write_text("[" + ",\n".join(json.dumps(line) for line in lines) + "]")
    return read_prompt_file(PromptSource(path), rules)


def refused(folder: Path, lines: list[str], rules: PromptChecks = STRICT) -> list[str]:
    """Lines of the message, without the file's path."""
    with pytest.raises(DataError) as caught:
        read(folder, lines, rules)
    return str(caught.value).removeprefix(f"{folder / 'p.json'}: ").splitlines()


class TestRefusing:
    def test_all_problems_are_told_together(self, tmp_path: Path) -> None:
        lines = ["a cat", "", "a dog ", "a cat", "a\x07b", "bad \ufffd"]
        assert refused(tmp_path, lines) == [
            "5 problems (empty: 1, whitespace around the prompt: 1, duplicates: 1, control characters: 1, "
            "wrong encoding: 1)",
            "  line 2: an empty prompt",
            "  line 3: whitespace before or after the prompt: 'a dog '",
            "  line 4: the same prompt as in line 1: 'a cat'",
            "  line 5: the control character U+0007 at character 2: 'a\\x07b'",
            "  line 6: the replacement character U+FFFD at character 5, which a wrong encoding leaves behind: "
            "'bad \ufffd'",
            "Fix the file, or a copy of it, or set `prompts.checks.duplicates: drop` (all but the first) or `keep`; "
            "`prompts.checks.empty: drop`; `prompts.checks.spaces: strip` or `keep`.",
        ]

    def test_one_problem_is_told_as_one(self, tmp_path: Path) -> None:
        assert refused(tmp_path, ["a", "b\tc"]) == [
            "1 problem (control characters: 1)",
            "  line 2: a tab (U+0009) at character 2: 'b\\tc'",
            "Fix the file, or a copy of it.",
        ]

    def test_twenty_are_shown_and_the_others_counted(self, tmp_path: Path) -> None:
        lines = refused(tmp_path, [f" {number}" for number in range(15)] + [""] * 15)
        assert lines[0] == "30 problems (whitespace around the prompt: 15, empty: 15)"
        assert [line.split(":")[0] for line in lines[1:21]] == [f"  line {number}" for number in range(1, 21)]
        assert lines[21] == "  and 10 more"

    def test_twenty_problems_need_no_count(self, tmp_path: Path) -> None:
        lines = refused(tmp_path, [""] * 20)
        assert lines[20] == "  line 20: an empty prompt"
        assert lines[21].startswith("Fix")

    def test_problems_that_are_not_refused_are_not_among_them(self, tmp_path: Path) -> None:
        rules = LENIENT.model_copy(update={"empty": "refuse"})
        assert refused(tmp_path, ["a", "a", "", " b"], rules)[0] == "1 problem (empty: 1)"

    def test_values_are_cut_short(self, tmp_path: Path) -> None:
        (line,) = refused(tmp_path, ["x" * 500 + " "])[1:2]
        assert line == "  line 1: whitespace before or after the prompt: '" + "x" * 59 + "..."

    @pytest.mark.parametrize(
        "character", ["\0", "\x1f", "\x7f", "\x85", "\u2028", "\u2029", "\ufeff", "\ud800", "\uffff"]
    )
    def test_unfit_characters_are_refused_whatever_the_rules(self, character: str, tmp_path: Path) -> None:
        (line,) = refused(tmp_path, [f"a{character}b"], LENIENT)[1:2]
        assert f"U+{ord(character):04X}" in line

    def test_letters_of_all_scripts_are_fit(self, tmp_path: Path) -> None:
        texts = ["猫", "कि\u200dख", "👩\u200d🎨", "a\u00a0b", "ﷺ", "e\u0301"]
        assert [row.text for row in read(tmp_path, texts, STRICT).rows] == texts


class TestDuplicates:
    @pytest.mark.parametrize(
        "other", ["caf\u00e9 bar", "cafe\u0301 bar", "caf\u00e9   bar", "caf\u00e9\u00a0bar"]
    )
    def test_composition_and_whitespace_make_no_difference(self, other: str, tmp_path: Path) -> None:
        assert "line 2: the same prompt as in line 1" in refused(tmp_path, ["caf\u00e9 bar", other])[1]

    def test_letters_do(self, tmp_path: Path) -> None:
        assert len(read(tmp_path, ["A cat", "a cat", "a cat."], STRICT).rows) == 3

    def test_each_names_the_first(self, tmp_path: Path) -> None:
        lines = refused(tmp_path, ["a", "b", "a", "a"])
        assert [line.split(": ")[1] for line in lines[1:3]] == ["the same prompt as in line 1"] * 2

    def test_all_problems_of_a_repeated_one_are_told(self, tmp_path: Path) -> None:
        lines = refused(tmp_path, ["a ", "a "])
        assert lines[0] == "3 problems (whitespace around the prompt: 2, duplicates: 1)"

    def test_dropped(self, tmp_path: Path) -> None:
        found = read(tmp_path, ["a", "b", "a", "a"], LENIENT)
        assert [(row.text, row.line) for row in found.rows] == [("a", 1), ("b", 2)]
        (finding,) = found.report.findings
        assert (finding.what, finding.action, finding.lines) == ("duplicates", "drop", (3, 4))
        assert (found.report.read, found.report.kept) == (4, 2)

    def test_kept(self, tmp_path: Path) -> None:
        found = read(tmp_path, ["a", "a"], STRICT.model_copy(update={"duplicates": "keep"}))
        assert [row.line for row in found.rows] == [1, 2]
        assert found.report.findings[0].action == "keep"

    def test_a_space_before_hides_none(self, tmp_path: Path) -> None:
        for spaces in ("strip", "keep"):
            rules = PromptChecks(duplicates="drop", empty="drop", spaces=spaces, too_long="keep")  # type: ignore[arg-type]
            assert [row.line for row in read(tmp_path, ["a", " a"], rules).rows] == [1]


class TestOtherRules:
    def test_empty_ones_are_dropped(self, tmp_path: Path) -> None:
        found = read(tmp_path, ["a", "", " \t", "b"], LENIENT)
        assert [row.line for row in found.rows] == [1, 4]
        assert [(f.what, f.action, f.lines) for f in found.report.findings] == [("empty", "drop", (2, 3))]

    def test_dropping_all_leaves_none(self, tmp_path: Path) -> None:
        assert refused(tmp_path, ["", " "], LENIENT) == [
            "must hold prompts, got none at all. Check the path."
        ]

    def test_whitespace_is_stripped(self, tmp_path: Path) -> None:
        found = read(tmp_path, ["\ta\u00a0", "b\n", "c"], LENIENT)
        assert [row.text for row in found.rows] == ["a", "b", "c"]
        assert [(f.action, f.lines) for f in found.report.findings] == [("strip", (1, 2))]

    def test_whitespace_is_kept(self, tmp_path: Path) -> None:
        found = read(tmp_path, [" a", "b"], STRICT.model_copy(update={"spaces": "keep"}))
        assert [row.text for row in found.rows] == [" a", "b"]
        assert [(f.action, f.lines) for f in found.report.findings] == [("keep", (1,))]

    def test_a_line_feed_at_the_end_is_kept_by_no_rule(self, tmp_path: Path) -> None:
        lines = refused(tmp_path, ["a\n"], STRICT.model_copy(update={"spaces": "keep"}))
        assert lines[1] == "  line 1: a line feed (U+000A) at character 2: 'a\\n'"


def words(text: str) -> int:
    return len(text.split())


LIMITS = {"clip": (words, 2), "t5": (words, 3)}


class TestLengths:
    def test_long_ones_are_kept_and_told_for_each_encoder(self, tmp_path: Path) -> None:
        found = read(tmp_path, ["a b", "a", "a b c", "a b c d", "a"], LENIENT)
        report = check_lengths(found.rows, found.report, LENIENT, LIMITS)
        assert report is not None
        assert [(f.what, f.action, f.lines) for f in report.findings] == [
            ("duplicates", "drop", (5,)),
            ("longer than clip's 2 tokens", "keep", (3, 4)),
            ("longer than t5's 3 tokens", "keep", (4,)),
        ]
        assert report.findings[2].examples == ("4 tokens of t5, which takes 3: 'a b c d'",)

    def test_they_are_refused_together(self, tmp_path: Path) -> None:
        found = read(tmp_path, ["a b c d", "a", "a b c"], STRICT)
        with pytest.raises(DataError) as caught:
            check_lengths(found.rows[::-1], found.report, STRICT, LIMITS)
        assert str(caught.value).splitlines() == [
            f"{tmp_path / 'p.json'}: 3 problems (longer than clip's 2 tokens: 2, longer than t5's 3 tokens: 1)",
            "  line 1: 4 tokens of clip, which takes 2: 'a b c d'",
            "  line 1: 4 tokens of t5, which takes 3: 'a b c d'",
            "  line 3: 3 tokens of clip, which takes 2: 'a b c'",
            "Fix the file, or a copy of it, or set `prompts.checks.too_long: keep` (the text encoder truncates them) "
            "or, for T5, a higher `model.max_sequence_length`.",
        ]

    def test_only_prompts_that_are_used_count(self, tmp_path: Path) -> None:
        found = read(tmp_path, ["a", "b", "a b c d"], STRICT).part(0, 2)
        assert check_lengths(found.rows, found.report, STRICT, LIMITS) == found.report

    def test_prompts_of_our_own_are_told_by_their_number(self) -> None:
        rows = [PromptRow(text, "", {}, number, "coco") for number, text in enumerate(("a", "a b c", "a"), 1)]
        report = check_lengths(rows, None, LENIENT, LIMITS)
        assert report is not None
        assert report.lines() == [
            "coco: 3 of 3 prompts taken",
            "coco: longer than clip's 2 tokens: 1 kept as they are (prompt 2)",
        ]
        assert check_lengths(rows[:1], None, LENIENT, LIMITS) is None
        with pytest.raises(DataError) as caught:
            check_lengths(rows, None, STRICT, LIMITS)
        assert str(caught.value).splitlines()[1:] == [
            "  prompt 2: 3 tokens of clip, which takes 2: 'a b c'",
            "Set `prompts.checks.too_long: keep` (the text encoder truncates them) or, for T5, a higher "
            "`model.max_sequence_length`.",
        ]


class TestFindings:
    def test_what_was_not_to_be_read_is_forgotten(self) -> None:
        findings = Findings(["p.txt"])
        for line in (1, 5, 6):
            findings.add("too_long", "long", "p.txt", line, f"on {line}")
        findings.add("empty", "empty", "p.txt", 5, "on 5")
        findings.until(5)
        (finding,) = findings.reported(LENIENT)
        assert (finding.what, finding.lines, finding.examples) == ("long", (1,), ("on 1",))

    def test_nor_is_what_stands_further_on_in_a_line(self) -> None:
        findings = Findings(["p.txt"])
        for column in (3, 7, 8):
            findings.add("too_long", "long", "p.txt", 2, f"at {column}", column)
        findings.until(2, 7)
        (finding,) = findings.reported(LENIENT)
        assert (finding.lines, finding.examples) == ((2,), ("at 3",))


class TestReport:
    def test_it_is_told_in_sentences(self, tmp_path: Path) -> None:
        found = read(tmp_path, ["a", "a", "", "b"], LENIENT)
        path = tmp_path / "p.json"
        assert found.report.lines() == [
            f"{path}: 2 of 4 prompts taken",
            f"{path}: duplicates: 1 dropped (line 2)",
            f"{path}: empty: 1 dropped (line 3)",
        ]

    def test_prompts_that_are_not_used_are_told(self, tmp_path: Path) -> None:
        found = read(tmp_path, ["a", "a", "b", "c"], LENIENT).part(0, 2)
        assert [row.text for row in found.rows] == ["a", "b"]
        assert found.report.lines()[0] == f"{tmp_path / 'p.json'}: 2 of 4 prompts taken, 3 passed the checks"
        content = found.report.as_json()
        assert (content["read"], content["kept"], content["used"]) == (4, 3, 2)

    def test_notes_come_last(self, tmp_path: Path) -> None:
        (tmp_path / "p.txt").write_text("a\nb\n")
        report = read_prompt_file(PromptSource(tmp_path / "p.txt", limit=1), STRICT).report
        assert report.lines()[1:] == list(report.notes) != []

    def test_long_lists_are_cut_and_counted(self, tmp_path: Path) -> None:
        report = read(tmp_path, ["a"] * 31, LENIENT).report
        assert report.lines()[1].endswith(
            "duplicates: 30 dropped (line " + ", ".join(map(str, range(2, 22))) + " and 10 more)"
        )
        content = json.loads(json.dumps(report.as_json()))
        assert (content["read"], content["kept"], content["unit"]) == (31, 1, "line")
        (finding,) = content["findings"]
        assert (finding["count"], finding["first"], len(finding["examples"])) == (30, list(range(2, 22)), 20)
        assert len(report.findings[0].lines) == 30


def test_prompts_that_two_sets_share() -> None:
    def row(text: str, line: int, source: str) -> PromptRow:
        return PromptRow(text, "", {}, line, source)

    train = [row("a cat", 1, "train"), row("a  cat", 2, "train"), row("a dog", 3, "train")]
    test = [row("a cow", 1, "test"), row("a\u00a0cat", 2, "test")]
    assert shared_prompts(test, train) == [(test[1], train[0])]


def test_normalized_by_hand() -> None:
    assert normalized(" Cafe\u0301 \u2003 b\n") == "Café b"
