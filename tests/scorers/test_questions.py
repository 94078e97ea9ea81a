"""Questions that a prompt lists, by DPG-Bench's rule."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from chunk_grpo.config.questions import ListedQuestion, parse_questions
from chunk_grpo.scorers.base import ScoreBatch
from chunk_grpo.scorers.judging.questions import Questions, image_value, yes_or_no
from tests.scorers.judge_cases import batch_of, questions
from tests.scorers.judge_server import JudgeServer, Reply

TREE = [
    {"id": 1, "question": "Is there a cup?", "parents": []},
    {"id": 2, "question": "Is it red?", "parents": [1]},
    {"id": 3, "question": "Is it a dark red?", "parents": [2]},
    {"id": 4, "question": "Is there a dog?"},
]
LISTED = {"questions": TREE}


@pytest.fixture
def make(judge_server: JudgeServer, tmp_path: Path):
    def make(**changes: Any) -> Questions:
        return questions(judge_server.url, tmp_path / "answers", **changes)

    return make


def answers(server: JudgeServer, **replies: str) -> None:
    """The server's answers by a word of the question; yes to the others."""
    server.answer = lambda request: Reply(
        next((reply for word, reply in replies.items() if word in request.text), "yes")
    )


class TestRule:
    @pytest.mark.parametrize(
        ("yes", "value"),
        [
            ([1, 1, 1, 1], 1.0),
            ([1, 0, 1, 1], 2 / 4),  # 3 hangs on 2
            ([0, 1, 1, 1], 1 / 4),  # 2 hangs on 1, 3 on 2
            ([1, 1, 0, 1], 3 / 4),
            ([1, 1, 1, 0], 3 / 4),
            ([0, 0, 0, 0], 0.0),
        ],
    )
    def test_no_also_fails_dependent_questions(self, yes, value):
        listed = parse_questions(LISTED)
        assert image_value(listed, list(map(bool, yes))) == value

    def test_one_failed_parent_fails_the_child(self):
        listed = [ListedQuestion(1, "a", ()), ListedQuestion(2, "b", ()), ListedQuestion(3, "c", (1, 2))]
        assert image_value(listed, [True, False, True]) == pytest.approx(1 / 3)

    def test_a_child_before_its_parent_reads_the_parents_own_answer(self):
        listed = [ListedQuestion(3, "c", (2,)), ListedQuestion(2, "b", (1,)), ListedQuestion(1, "a", ())]
        assert image_value(listed, [True, True, False]) == pytest.approx(1 / 3)


class TestAnswers:
    @pytest.mark.parametrize("answer", ["yes", "Yes", " YES.\n", "**Yes**", '"yes"', "**Yes.**"])
    def test_accepts_forms_of_yes_and_no(self, answer):
        assert yes_or_no(answer) is True
        assert yes_or_no(answer.lower().replace("yes", "no")) is False

    @pytest.mark.parametrize("answer", ["", "maybe", "Yes, there is.", "not", "yes no", "n", "yes/no"])
    def test_rejects_answers_other_than_yes_or_no(self, answer):
        with pytest.raises(ValueError, match="must be yes or no, as one word, got"):
            yes_or_no(answer)


class TestScores:
    def test_values_and_details(self, judge_server, make):
        answers(judge_server, dark="no", dog="No.", cup="<think>no?</think>Yes")
        scores = make().score(batch_of(2, record=LISTED))
        assert scores.values.tolist() == [0.5, 0.5]
        assert scores.details["yes"].tolist() == [0.5, 0.5]
        assert len(judge_server.requests) == 8
        answers(judge_server, cup="no")
        scores = make().score(ScoreBatch(batch_of(1, record=LISTED).images ^ 1, ["p"], [LISTED], [0]))
        assert (scores.values.tolist(), scores.details["yes"].tolist()) == ([0.25], [0.75])

    def test_an_image_without_all_answers_is_refused(self, judge_server, make):
        first = batch_of(2, record=LISTED).images[0].tobytes()
        judge_server.answer = lambda request: Reply(
            "who knows" if "red" in request.text and request.image.tobytes() == first else "yes"
        )
        scores = make(attempts=2).score(batch_of(2, record=LISTED))
        assert scores.values[1] == 1.0 and np.isnan(scores.values[0])
        assert scores.refused[0].startswith("2 of 4 questions have no answer, such as no well-formed answer in 2")
        assert "question 2 of prompt 'prompt 1': must be yes or no" in scores.refused[0]
        assert len(judge_server.requests) == 6 + 2 * 2
        judge_server.requests.clear()
        answers(judge_server)
        assert make().score(batch_of(2, record=LISTED)).values.tolist() == [1.0, 1.0]
        assert len(judge_server.requests) == 2  # the others are stored


class TestLists:
    def test_other_fields_of_a_template_are_needed_too(self, make):
        settings = make(template="{metadata.place}: {question}").settings
        settings.check_data("p", {"questions": TREE, "place": "left"})
        with pytest.raises(ValueError, match="needs the field 'place'"):
            settings.check_data("p", LISTED)

    @pytest.mark.parametrize(
        ("template", "fault"), [("{prompt}?", r"must have the field \{question\}"), ("{x}", "is no field")]
    )
    def test_a_template_has_the_question(self, make, template, fault):
        with pytest.raises(ValidationError, match=fault):
            make(template=template)
