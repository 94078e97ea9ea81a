"""WISE's numbers by hand: answers, values of images, categories of prompts, and the wording of the question."""

import ast

import pytest

from chunk_grpo.errors import DataError
from chunk_grpo.scorers.judging.reading import without_thoughts
from chunk_grpo.scorers.wise.instructions import OWN, find_instructions, read_evaluator
from chunk_grpo.scorers.wise.protocols import (
    NUM_PROMPTS,
    PROTOCOLS,
    ProtocolName,
    category_of,
    image_value,
    parse_answer,
)

# First and last id of each category, and its weight, as in Calculate.py and calculate_verified.py.
TABLE: dict[ProtocolName, dict[str, tuple[int, int, float]]] = {
    "legacy": {
        "culture": (1, 400, 0.4),
        "time": (401, 567, 0.167),
        "space": (568, 700, 0.133),
        "biology": (701, 800, 0.1),
        "physics": (801, 900, 0.1),
        "chemistry": (901, 1000, 0.1),
    },
    "verified": {
        "culture": (1, 400, 0.4),
        "time": (401, 520, 0.12),
        "space": (521, 640, 0.12),
        "biology": (641, 760, 0.12),
        "physics": (761, 880, 0.12),
        "chemistry": (881, 1000, 0.12),
    },
}

# Written like gpt_eval.py and vllm_eval.py, in other words.
EVALUATOR = '''
import there_is_no_such_module

def build_evaluation_messages(prompt_data: dict, image_base64: str) -> list:
    return [
        {"role": "system", "content": [{"type": "text", "text": "Be fair."}]},
        {
            "role": "user",
            "content": [
                {
                    "type": "text",
                    "text": f"""Rate {{this}}: "{prompt_data['Prompt']}"
as {prompt_data["Explanation"]}!
Consistency: 2
Realism: 1
Aesthetic Quality: 0""",
                },
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image_base64}"}},
            ],
        },
    ]
'''


class TestAnswers:
    @pytest.mark.parametrize(
        "answer",
        [
            "Consistency: 2\nRealism: 1\nAesthetic Quality: 0",
            "**Consistency:** 2\n**Realism:** 1\n**Aesthetic Quality:** 0",
            "**Consistency**: 2\n**Realism**: 1\n**Aesthetic Quality**: 0\n",
            "**Consistency: 2**\n\n**Realism: 1**\n\n**Aesthetic Quality: 0**",
            "  realism:1\nCONSISTENCY : 2\r\naesthetic quality：0",
        ],
        ids=["plain", "bold label and colon", "bold label", "bold line", "order, case and spaces"],
    )
    def test_lines_of_labels_are_read(self, answer):
        assert parse_answer("legacy", answer) == {"consistency": 2, "realism": 1, "aesthetic": 0}

    @pytest.mark.parametrize(
        ("answer", "fault"),
        [
            ("Consistency: 3\nRealism: 1\nAesthetic Quality: 0", "consistency must be 0 to 2, got 3"),
            ("Consistency: 10\nRealism: 1\nAesthetic Quality: 0", "consistency must be 0 to 2, got 10"),
            ("Consistency: 2\nRealism: -1\nAesthetic Quality: 0", "realism must be 0 to 2, got -1"),
            ("Consistency: 1.5\nRealism: 1\nAesthetic Quality: 0", "'Consistency: 1.5' is none of"),
            ("Consistency: 2/2\nRealism: 1\nAesthetic Quality: 0", "'Consistency: 2/2' is none of"),
            ("Consistency: two\nRealism: 1\nAesthetic Quality: 0", "'Consistency: two' is none of"),
            ("Consistency: 2\nRealism: 1", "no line for aesthetic quality"),
            ("Consistency: 2\nRealism: 1\nRealism: 1\nAesthetic Quality: 0", "realism occurs twice"),
            ("Here you are:\nConsistency: 2\nRealism: 1\nAesthetic Quality: 0", "'Here you are:' is none of"),
            ("Consistency: 2, Realism: 1, Aesthetic Quality: 0", "is none of"),
            ("2\n1\n0", "'2' is none of"),
            ("", "no line for consistency, realism, aesthetic quality"),
        ],
    )
    def test_rejects_malformed_legacy_answer(self, answer, fault):
        with pytest.raises(ValueError, match=fault):
            parse_answer("legacy", answer)

    @pytest.mark.parametrize(("answer", "score"), [("Score: 0", 0), ("**Score:** 1", 1), ("score: 1\n", 1)])
    def test_verified_is_one_line(self, answer, score):
        assert parse_answer("verified", answer) == {"score": score}

    @pytest.mark.parametrize("answer", ["Score: 2", "1", "Score: 1\nScore: 1", "Score: 0 or 1", "Consistency: 1"])
    def test_rejects_malformed_verified_answer(self, answer):
        with pytest.raises(ValueError):
            parse_answer("verified", answer)

    @pytest.mark.parametrize("thoughts", ["<think>\nScore: 0?\n</think>\n\n", "Score: 0?\n</think>", ""])
    def test_thoughts_are_dropped(self, thoughts):
        assert without_thoughts(f"{thoughts}Score: 1") == "Score: 1"


class TestValues:
    @pytest.mark.parametrize(
        ("c", "r", "a", "value"),
        [(2, 2, 2, 1.0), (0, 0, 0, 0.0), (2, 0, 0, 0.7), (0, 2, 0, 0.2), (0, 0, 2, 0.1), (1, 2, 0, 0.55)],
    )
    def test_wiscore_by_hand(self, c, r, a, value):
        scores = {"consistency": c, "realism": r, "aesthetic": a}
        assert image_value("legacy", scores) == pytest.approx(value, abs=1e-15)

    def test_verified_is_the_score(self):
        assert [image_value("verified", {"score": score}) for score in (0, 1)] == [0.0, 1.0]


@pytest.mark.parametrize("protocol", ["legacy", "verified"])
class TestCategories:
    def test_categories_are_ranges_of_ids(self, protocol):
        for name, (first, last, _) in TABLE[protocol].items():
            assert category_of(protocol, first) == category_of(protocol, last) == name
        for outside in (0, 1001):
            with pytest.raises(ValueError, match=f"got {outside}"):
                category_of(protocol, outside)

    def test_overall_is_the_mean_of_all_prompts_for_weights_are_shares_of_the_ids(self, protocol):
        names = [category_of(protocol, number) for number in range(1, NUM_PROMPTS + 1)]
        weights = {name: names.count(name) / NUM_PROMPTS for name in dict.fromkeys(names)}
        assert weights == {name: weight for name, (_, _, weight) in TABLE[protocol].items()}


class TestInstructions:
    @pytest.mark.parametrize("protocol", ["legacy", "verified"])
    def test_the_question_holds_prompt_explanation_and_every_label(self, protocol):
        text = OWN[protocol].fill('a {curly} "prompt"', "its {Prompt} meaning")
        assert 'Prompt: "a {curly} "prompt""' in text and 'Explanation: "its {Prompt} meaning"' in text
        for label in PROTOCOLS[protocol].labels:
            assert f"\n{label.title()}: N" in text

    def test_the_original_is_read_as_it_would_run(self):
        function = next(node for node in ast.parse(EVALUATOR).body if isinstance(node, ast.FunctionDef))
        space: dict[str, object] = {}
        exec(compile(ast.Module([function], []), "evaluator", "exec"), space)
        expected = space["build_evaluation_messages"]({"Prompt": "{p}", "Explanation": "e"}, "")
        found = read_evaluator(EVALUATOR)
        assert found.system == expected[0]["content"][0]["text"]
        assert found.fill("{p}", "e") == expected[1]["content"][0]["text"]

    @pytest.mark.parametrize(
        ("text", "fault"),
        [
            (None, "No such file"),
            ("1 +", "is no Python"),
            ("x = 1", "needs two texts in build_evaluation_messages, the system's and the user's; has 0"),
            (EVALUATOR.replace("['Prompt']", "['prompt']"), r"line \d+: only text and Prompt and Explanation"),
            (EVALUATOR.replace("['Prompt']", "['Explanation']"), "Explanation filled in, once each"),
            (EVALUATOR.replace('"Be fair."', "f\"{prompt_data['Prompt']}\""), "and only that"),
            (EVALUATOR.replace("Realism:", "Look:"), "does not request a line `Realism:`, .* legacy"),
        ],
    )
    def test_another_file_is_refused(self, tmp_path, text, fault):
        path = tmp_path / "gpt_eval.py"
        if text is not None:
            path.write_text(text)
        with pytest.raises(DataError, match=rf"(?s)scorers.w.instructions: .*gpt_eval.py.*{fault}"):
            find_instructions("scorers.w", "legacy", str(path))
