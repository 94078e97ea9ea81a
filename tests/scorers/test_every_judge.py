"""What every scorer that asks a judge does: what it sends, keeps, asks again and refuses, and what its identity is."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunk_grpo.errors import DataError
from chunk_grpo.scorers.base import ScoreBatch
from chunk_grpo.scorers.judging.asking import JudgeScorer
from chunk_grpo.scorers.wise.instructions import OWN
from tests.scorers.judge_cases import GOOD, STARS, batch_of, questions, vlm_judge, wise
from tests.scorers.judge_server import JudgeServer, Reply


def listed(*entries: object) -> dict[str, object]:
    return {"questions": list(entries)}


ASKED = {"id": 1, "question": "a"}


@dataclass(frozen=True)
class Case:
    """A scorer, and what is true of it alone."""

    make: Callable[..., JudgeScorer[Any]]
    name: str
    record: dict[str, object]
    """Metadata of a prompt that it can judge."""
    text: str
    """Its question about the prompt `prompt 1` with this record."""
    good: str
    value: float
    """Value of the good answer."""
    others: list[dict[str, Any]]
    """Settings of its own that change its identity."""
    faults: list[tuple[dict[str, object], str]]
    """Records that it refuses, and why."""
    settings: dict[str, Any] = field(default_factory=dict)
    max_tokens: int = 2000


WISE = {"wise_id": 7, "explanation": "meaning 7"}
CASES = {
    "wise legacy": Case(
        wise, "wise/legacy/tiny-judge", WISE, OWN["legacy"].fill("prompt 1", "meaning 7"), GOOD, 0.8,
        others=[{"protocol": "verified"}],
        faults=[
            ({}, "wise_id must be a whole number from 1 to 1000, got None"),
            *(({**WISE, "wise_id": wrong}, f"got {wrong!r}") for wrong in ("7", True, 0, 1001)),
            ({"wise_id": 7}, "explanation must be a text, got None"),
            ({"wise_id": 7, "explanation": " "}, "explanation must be a text, got ' '"),
        ],
    ),
    "wise verified": Case(
        wise, "wise/verified/tiny-judge", WISE, OWN["verified"].fill("prompt 1", "meaning 7"), "Score: 1", 1.0,
        others=[{"protocol": "legacy"}], faults=[], settings={"protocol": "verified"}, max_tokens=500,
    ),
    "vlm-judge": Case(
        vlm_judge, "stars/tiny-judge", {"text": "a"}, 'How many stars has "prompt 1"? a', "Stars: 3", 3.0,
        others=[
            *({"template": "Other {prompt}"}, {"system": "S"}, {"image": "after"}),
            *({"reading": {**STARS, **change}} for change in ({"highest": 6.0}, {"scale": "unit"})),
            {"reading": {"kind": "yes-probability"}},
        ],
        faults=[(record, "has no 'text'") for record in ({"other": 1}, {}, {"text": None, "other": 1})],
        settings={"template": 'How many stars has "{prompt}"? {metadata.text}'},
    ),
    "questions": Case(
        questions, "questions/tiny-judge", listed(ASKED), "a Answer yes or no.", "yes", 1.0,
        others=[{"template": "{question}"}, {"system": "S"}, {"image": "after"}],
        faults=[
            (listed(), r"with a list of questions, got \[\]"),
            ({}, "needs the field 'questions' with a list of questions, got None"),
            (listed("a"), "entry 1 must be an object, got 'a'"),
            (listed({**ASKED, "id": "1"}), "entry 1: id must be a whole number, got '1'"),
            (listed({**ASKED, "id": True}), "id must be a whole number, got True"),
            (listed({**ASKED, "question": ""}), "entry 1: question must be a text, got ''"),
            (listed({**ASKED, "parents": 0}), "parents must be a list of whole numbers, got 0"),
            (listed({**ASKED, "parents": [2]}), "question 1: parents must be ids of other .* got 2"),
            (listed(ASKED, {**ASKED, "question": "b"}), "the id 1 occurs 2 times"),
        ],
    ),
}  # fmt: skip


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture
def make(case: Case, judge_server: JudgeServer, tmp_path: Path) -> Callable[..., JudgeScorer[Any]]:
    judge_server.answer = lambda request: Reply(case.good)
    return lambda **changes: case.make(judge_server.url, tmp_path / "answers", **{**case.settings, **changes})


def test_what_is_sent_and_read(case, make, judge_server):
    assert make().name == case.name
    assert make().score(batch_of(1, record=case.record)).values == pytest.approx([case.value])
    (request,) = judge_server.requests
    messages = request.body.pop("messages")
    fields = {"model": "tiny-judge", "temperature": 0.0, "seed": 0, "max_tokens": case.max_tokens}
    assert request.body == fields
    if case.make is wise:
        words = OWN[case.settings.get("protocol", "legacy")].system
        assert messages[0] == {"role": "system", "content": [{"type": "text", "text": words}]}
    assert [message["role"] for message in messages] == ["system", "user"][-len(messages) :]
    request.body["messages"] = messages
    assert request.text == case.text
    np.testing.assert_array_equal(request.image, batch_of(1, record=case.record).images[0])


def test_fields_are_added_replaced_and_left_out(case, make, judge_server):
    extra = {"chat_template_kwargs": {"enable_thinking": False}, "max_tokens": 9, "seed": None}
    make(request=extra).score(batch_of(1, record=case.record))
    body = judge_server.requests[0].body
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    assert (body["max_tokens"], body["temperature"], "seed" in body) == (9, 0.0, False)


def test_an_image_is_judged_once(case, make, judge_server):
    first = make().score(batch_of(3, record=case.record).rows([0, 1, 2, 1, 0]))
    assert len(judge_server.requests) == 3
    again = make(concurrency=1, attempts=9, timeout_seconds=7.0, batch_size=9).score(batch_of(3, record=case.record))
    assert len(judge_server.requests) == 3
    assert first.values[:3].tolist() == again.values.tolist()


@pytest.mark.parametrize("answer", ["", "who knows"])
def test_a_malformed_answer_is_asked_again_and_then_refused(case, make, judge_server, answer):
    judge_server.replies.extend([Reply(answer), Reply(answer)])
    assert make().score(batch_of(1, record=case.record)).values == pytest.approx([case.value])
    assert [request.body["seed"] for request in judge_server.requests] == [0, 1, 2]
    judge_server.answer = lambda request: Reply(answer)
    one = batch_of(1, record=case.record)
    scores = make().score(ScoreBatch(one.images ^ 1, one.prompts, one.metadata, one.groups))
    assert np.isnan(scores.values).all()
    assert "no well-formed answer in 3 attempts. " in scores.refused[0]


def test_identity_changes_only_with_result_settings(case, make, tmp_path):
    same = make().spec_hash()
    assert make(concurrency=9, attempts=1, timeout_seconds=1.0, splits=("test",), batch_size=9).spec_hash() == same
    assert make(api_key_variable="JUDGE_KEY", answers=str(tmp_path / "elsewhere")).spec_hash() == same
    others = [{"judge": "b"}, {"request": {"seed": None}}, {"base_url": "http://b/v1"}, *case.others]
    assert len({same, *(make(**changes).spec_hash() for changes in others)}) == 1 + len(others)


@pytest.mark.parametrize(
    ("kind", "record", "fault"), [(kind, *fault) for kind, case in CASES.items() for fault in case.faults]
)
def test_metadata_that_do_not_fit_are_named_before_any_request(kind, record, fault, judge_server, tmp_path):
    case = CASES[kind]
    scorer, two = case.make(judge_server.url, tmp_path, **case.settings), batch_of(2, record=case.record)
    given = ScoreBatch(two.images, two.prompts, [case.record, record], [0, 0])
    with pytest.raises(DataError, match=rf"^scorers\.{scorer.key}: .*prompt 'prompt 2': .*{fault}"):
        scorer.score(given)
    assert not judge_server.requests
    if case.make is not wise:
        with pytest.raises(ValueError):
            scorer.settings.check_data("prompt 1", json.loads(json.dumps(record)))
