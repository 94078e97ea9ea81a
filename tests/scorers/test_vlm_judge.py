"""A judge with the user's question: what is asked, what is read from its answers, and what is refused."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from ruamel.yaml import YAML

from chunk_grpo.config.judges import NumberReading, QuestionsScorer, VlmJudgeScorer
from chunk_grpo.config.templates import Slot, parse_template
from chunk_grpo.errors import DataError
from chunk_grpo.scorers.judging.reading import first_tokens, number_in, yes_probability
from chunk_grpo.scorers.judging.vlm_judge import VlmJudge
from tests.scorers.judge_cases import STARS, batch_of, vlm_judge
from tests.scorers.judge_server import JudgeServer, Reply, completion, first_token

ROOT = Path(__file__).resolve().parents[2]

YES = {"kind": "yes-probability"}


@pytest.fixture
def make(judge_server: JudgeServer, tmp_path: Path):
    def make(**changes: Any) -> VlmJudge:
        return vlm_judge(judge_server.url, tmp_path / "answers", **changes)

    return make


class TestTemplate:
    def test_fields_and_braces(self):
        template = parse_template("{{a}} {prompt}: {metadata.text of it}{metadata.n}{prompt}")
        assert template.pieces == (
            "{", "a", "}", " ", Slot("prompt"), ": ", Slot("metadata.text of it"), Slot("metadata.n"), Slot("prompt"),
        )  # fmt: skip
        assert template.slots == ("prompt", "metadata.text of it", "metadata.n")
        assert template.keys == ("text of it", "n")
        values = {"prompt": "{prompt}", "metadata.text of it": "x", "metadata.n": "2"}
        assert template.fill(values) == "{a} {prompt}: x2{prompt}"

    @pytest.mark.parametrize(
        ("text", "fault"),
        [
            ("Is it {a}?", r"character 7: \{a\} is no field; the fields are \{prompt\}, \{metadata.KEY\}"),
            ("{metadata.}", "character 1: {metadata.} is no field"),
            ("{}", "character 1: {} is no field"),
            ("{prompt", "character 1: a single {; write {{"),
            ("a } b", "character 3: a single }; write }}"),
        ],
    )
    def test_rejects_invalid_template(self, text, fault):
        with pytest.raises(ValueError, match=fault):
            parse_template(text)


class TestPattern:
    @pytest.mark.parametrize(
        ("answer", "value"),
        [
            ("Stars: 4", 4.0),
            ("Good.\nStars: 3.5.", 3.5),
            ("Stars: 2/5", 2.0),
            ("1-5 stars? Stars: 5", 5.0),
            ("Stars: 3, I repeat: Stars: 3.0", 3.0),
        ],
    )
    def test_numbers(self, answer, value):
        assert number_in(answer, NumberReading(**STARS)) == value

    @pytest.mark.parametrize(
        ("pattern", "answer", "fault"),
        [
            (r"Stars: (\d)", "Fine.", "nothing matches the pattern"),
            (r"Stars: (\d)", "Stars: 10", "finds '1', a part of '10'"),
            (r"Stars: (\d)", "Stars: 4.5", "finds '4', a part of '4.5'"),
            (r"Stars: .?(\d)", "Stars: -1", "finds '1', a part of '-1'"),
            (r"(\d+)", "4,5", "finds '4', a part of '4,5'"),
            (r"Stars: ([\d.]+)", "Stars: 6", "must be 1 to 5, got 6"),
            (r"Stars: ([\d.]+)", "Stars: 0.5", "must be 1 to 5, got 0.5"),
            (r"Stars: (\d)", "Stars: 3 or Stars: 4", "several numbers: 3.0, 4.0"),
            (r"Stars: (\w+)", "Stars: four", "finds 'four', which is no number"),
            (r"Stars: (\w+)", "Stars: nan", "finds 'nan', which is not finite"),
            (r"Stars:(?: (\d))?", "Stars: x", "finds None, which is no number"),
        ],
    )
    def test_rejects_answer_without_number_on_scale(self, pattern, answer, fault):
        with pytest.raises(ValueError, match=fault):
            number_in(answer, NumberReading(**{**STARS, "pattern": pattern}))

    def test_the_unit_scale(self):
        reading = NumberReading(**{**STARS, "pattern": r"(\d)", "scale": "unit"})
        assert [number_in(text, reading) for text in "125"] == [0.0, 0.25, 1.0]


class TestYesProbability:
    def value(self, chances: dict[str, float]) -> float:
        return yes_probability(first_tokens(first_token(chances)))

    def test_probabilities_of_spellings_are_summed(self):
        chances = {"Yes": 0.4, " yes": 0.1, "YES\n": 0.1, "▁No": 0.1, "no": 0.1, "Yesterday": 0.1, "I": 0.1}
        assert self.value(chances) == pytest.approx(0.6 / 0.8)

    def test_missing_word_has_probability_zero(self):
        assert self.value({"Yes": 0.5, "I": 0.5}) == 1.0
        assert self.value({"I": 0.5, "No": 0.25}) == 0.0

    def test_two_tokens_of_one_spelling_both_count(self):
        answer = json.dumps([["Yes", math.log(0.25)], ["Yes", math.log(0.25)], ["No", math.log(0.5)]])
        assert yes_probability(answer) == pytest.approx(0.5)

    @pytest.mark.parametrize(
        ("answer", "fault"),
        [
            (json.dumps([["I", -0.1], [" am", -3.0]]), "neither yes nor no .*'I', ' am'"),
            (json.dumps([["Yes", -9999.0], ["No", -9999.0]]), "neither yes nor no"),
            (json.dumps([["Yes", 1.0]]), "must be at most 0, got 1.0"),
            ('[["Yes", NaN]]', "must be at most 0, got nan"),
            ("Yes", "is no list of tokens"),
            ("[1]", "is no list of tokens"),
        ],
    )
    def test_rejects_answer_without_yes_or_no(self, answer, fault):
        with pytest.raises(ValueError, match=fault):
            yes_probability(answer)

    @pytest.mark.parametrize(
        "reply", [completion("Yes"), b"{}", b"<html>", b'{"choices": [{"logprobs": {"content": []}}]}']
    )
    def test_a_reply_without_probabilities_is_refused(self, reply):
        with pytest.raises(ValueError, match=r"no log probabilities of its first token .*does the endpoint offer"):
            first_tokens(reply)


class TestScores:
    def test_the_probability_of_yes(self, judge_server, make):
        judge_server.answer = lambda request: Reply(first_token({"Yes": 0.6, "No": 0.2}))
        scorer = make(reading=YES)
        assert scorer.score(batch_of(1, record={})).values == pytest.approx([0.75])
        (request,) = judge_server.requests
        assert {name: request.body[name] for name in ("max_tokens", "logprobs", "top_logprobs")} == {
            "max_tokens": 1, "logprobs": True, "top_logprobs": 20,
        }  # fmt: skip
        assert make(reading=YES).score(batch_of(1, record={})).values == pytest.approx([0.75])
        assert len(judge_server.requests) == 1  # read from the stored answer


class TestRequests:
    @pytest.mark.parametrize("image", ["before", "after"])
    @pytest.mark.parametrize("system", [None, "Be fair."])
    def test_order_of_the_parts(self, judge_server, make, image, system):
        judge_server.answer = lambda request: Reply("Stars: 3")
        make(image=image, system=system).score(batch_of(1, record={}))
        (request,) = judge_server.requests
        messages = request.body["messages"]
        assert [message["role"] for message in messages] == ["system"] * (system is not None) + ["user"]
        order = ["image_url", "text"] if image == "before" else ["text", "image_url"]
        assert [part["type"] for part in messages[-1]["content"]] == order

    def test_a_pair_is_the_edited_picture_and_the_image_before_the_text(self, judge_server, make):
        """The answer is that of both: another picture to edit is another question."""
        judge_server.answer = lambda request: Reply("Stars: 3")
        batch = batch_of(2, record={})
        batch = replace(batch, images=batch.images[[0, 0]], prompts=["p", "p"], sources=batch.images[::-1])
        judge = make(image="pair")
        assert judge.score(batch).values.tolist() == [3.0, 3.0]
        assert len(judge_server.requests) == 2
        seen = set()
        for request in judge_server.requests:
            order = [part["type"] for part in request.body["messages"][-1]["content"]]
            assert order == ["image_url", "image_url", "text"]
            source, image = request.images
            assert np.array_equal(image, batch.images[0])
            seen.add(source.tobytes())
        assert seen == {each.tobytes() for each in batch.sources}
        with pytest.raises(DataError, match=r"judges the pictures .*set picture_field of the prompt files"):
            judge.score(batch_of(1, record={}))

    def test_metadata_is_filled_in(self, judge_server, make):
        judge_server.answer = lambda request: Reply("Stars: 3")
        make(template="{metadata.text}, {metadata.count} {metadata.list}?").score(
            batch_of(1, record={"text": '"a" {x}', "count": 2, "list": ["é", 1]})
        )
        assert judge_server.requests[0].text == '"a" {x}, 2 ["é", 1]?'


class TestTemplateFile:
    def test_template_file_with_plain_text(self, judge_server, make, tmp_path):
        judge_server.answer = lambda request: Reply("Stars: 3")
        path = tmp_path / "question.txt"
        path.write_text("Rate {prompt}.\nStars?\n")
        make(template=None, template_file=str(path)).score(batch_of(1, record={}))
        assert judge_server.requests[0].text == "Rate prompt 1.\nStars?"

    def test_template_file_with_evaluator_source(self, judge_server, make, tmp_path):
        judge_server.answer = lambda request: Reply("Stars: 3")
        path = tmp_path / "evaluate.py"
        path.write_text("def ask(prompt):\n    question = f'<image>\\n{{Rate}} [{prompt}]'\n    raise SystemExit\n")
        make(template=None, template_file=str(path)).score(batch_of(1, record={}))
        assert judge_server.requests[0].text == "<image>\n{Rate} [prompt 1]"

    @pytest.mark.parametrize(
        ("name", "text", "fault"),
        [
            ("a.txt", "{x}", "{x} is no field"),
            ("a.py", "question = ", "is no Python"),
            ("a.py", "text = 'a'", "needs one string that is assigned to `question`, has 0"),
            ("a.py", "question = 'a'\nquestion = 'b'", "has 2"),
            ("a.py", "question = f'{other}'", "line 1: only text and prompt can be read"),
            ("a.py", "question = f'{prompt!r}'", "line 1: only text"),
            ("a.py", "question = 3", "line 1: only text"),
            ("nowhere.txt", None, "No such file"),
        ],
    )
    def test_another_content_is_refused(self, judge_server, make, tmp_path, name, text, fault):
        if text is not None:
            (tmp_path / name).write_text(text)
        with pytest.raises(DataError, match=rf"scorers\.stars\.template_file: .*{name}: .*{fault}"):
            make(template=None, template_file=str(tmp_path / name)).check()
        assert not judge_server.model_requests


class TestIdentity:
    def test_the_words_of_a_file_count_and_its_place_does_not(self, make, tmp_path):
        for name, text in {"a": "A {prompt}", "b": "A {prompt}\n", "c": "C {prompt}"}.items():
            (tmp_path / name).write_text(text)
        a, b, c = (make(template=None, template_file=str(tmp_path / name)).spec_hash() for name in "abc")
        assert a == b != c


class TestSettings:
    @pytest.mark.parametrize(
        ("changes", "fault"),
        [
            ({"template": "{x}"}, r"template\n.*\{x\} is no field"),
            ({"reading": {**STARS, "pattern": "("}}, "must be a regular expression"),
            ({"reading": {**STARS, "pattern": r"\d"}}, "must have one group, the number, .* has 0"),
            ({"reading": {**STARS, "pattern": r"(\d)(\d)"}}, "has 2"),
        ],
    )
    def test_rejects_invalid_settings(self, make, changes, fault):
        with pytest.raises(ValidationError, match=fault):
            make(**changes)

    @pytest.mark.parametrize(
        ("file", "name", "settings"),
        [
            ("vqa-score", "vqa-score", VlmJudgeScorer),
            ("unified-reward", "unified-reward", VlmJudgeScorer),
            ("compbench", "compbench", VlmJudgeScorer),
            ("dpg-bench", "dpg", QuestionsScorer),
        ],
    )
    def test_the_sections_of_conf_are_valid_and_complete(self, file, name, settings):
        text = (ROOT / "conf" / "scorers" / f"{file}.yaml").read_text("utf-8")
        section = YAML(typ="safe").load(text)["scorers"][name]
        found = settings.model_validate_json(json.dumps(section))
        assert found.model_fields_set == set(settings.model_fields)
