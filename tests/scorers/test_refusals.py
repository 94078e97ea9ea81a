"""Images that a scorer refuses: wherever it runs they have no number but a reason, and the others have theirs."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from chunk_grpo.errors import DataError, RefusedError, TransientError
from chunk_grpo.scorers.base import Scorer, Scores, check_scores
from chunk_grpo.scorers.contract import check_contract
from chunk_grpo.scorers.executors.scoring_thread import ScoringThread
from chunk_grpo.scorers.reward import Reward
from chunk_grpo.scorers.running.external import External
from chunk_grpo.scorers.running.placing import place_scorer
from chunk_grpo.scorers.running.registry import make_scorer
from chunk_grpo.scorers.workers import lines
from tests.scorers.odd_scorers import KEY, batch, settings
from tests.scorers.servers import ROOT, in_subprocess, over_http, server_in_thread

PLACES = ("in-process", "subprocess", "http")
SMALL = settings().model_copy(update={"batch_size": 3})


@pytest.fixture(scope="module")
def scorers() -> Iterator[dict[str, Scorer]]:
    """The same scorer, three images at a time, where `executors` may place it."""
    with ExitStack() as stack:
        url = stack.enter_context(server_in_thread(make_scorer(KEY, SMALL)))
        executors: dict[str, Any] = {
            "in-process": None,
            "subprocess": in_subprocess(),
            "http": over_http(url),
        }
        made = {place: place_scorer(KEY, SMALL, executor) for place, executor in executors.items()}
        for scorer in made.values():
            stack.callback(scorer.close)
        yield made


@pytest.mark.parametrize("place", PLACES)
def test_a_refused_image_has_a_reason_and_the_others_their_scores(
    place: str, scorers: dict[str, Scorer]
) -> None:
    """Of seven images, three at a time, the second of each three is refused; that of the last one alone is not."""
    scores = scorers[place].score(batch("refuse", count=7))
    assert dict(scores.refused) == {1: "the reason (1)", 4: "the reason (1)"}
    checked = check_scores(KEY, scores, batch(count=7).prompts)
    whole = External(KEY, SMALL).score(batch(count=7)).values
    assert np.flatnonzero(np.isnan(checked.values)).tolist() == [1, 4]
    assert np.array_equal(np.delete(checked.values, [1, 4]), np.delete(whole, [1, 4]))


def test_what_is_not_refused_needs_a_number() -> None:
    values = np.array([np.nan, 0.5, np.nan])
    with pytest.raises(DataError, match=r"scorer odd: image 2 of the batch \('c'\) got nan"):
        check_scores("odd", Scores(values, {}, {0: "why"}), ["a", "b", "c"])
    details = {"d": np.array([np.nan, np.nan, 1.0])}
    with pytest.raises(DataError, match="detail 'd' needs one finite value"):
        check_scores("odd", Scores(np.array([np.nan, 0.5, 1.0]), details, {0: "why"}), ["a", "b", "c"])


def test_a_reward_refuses_to_be_without_a_number() -> None:
    reward = Reward({KEY: External(KEY, settings())}, {KEY: 1.0})
    with pytest.raises(
        DataError, match=r"^scorer odd: refuses an image of the prompt 'prompt x' \(the reason"
    ):
        reward.scores(batch("refuse"))


def test_the_contract_needs_images_that_are_judged() -> None:
    with pytest.raises(DataError, match=r"^contract: scorer odd refuses image 1 \(the reason"):
        check_contract(External(KEY, settings()), batch("refuse"))


def test_batches_that_a_server_merges_keep_their_own_refusals() -> None:
    thread = ScoringThread(External(KEY, settings()), merge=100)
    questions = [batch("refuse", count=3), batch(count=2)]
    futures = [thread.submit(as_line(question)) for question in questions]
    thread.start(lambda: None)
    first, second = (future.result(timeout=20) for future in futures)
    thread.leave()
    thread.join()
    assert (dict(first.refused), dict(second.refused)) == ({1: "the reason (1)"}, {})


def as_line(question: Any) -> lines.Batch:
    from chunk_grpo.scorers.executors.wire import encode_batch

    return lines.read_batch(lines.read_message(encode_batch(question).line))


def test_a_worker_script_refuses_with_the_same_word() -> None:
    question = as_line(batch(count=2))
    told = lines.scores_message(question, [0.5, lines.RefusedError("why")], {}, "abc")
    assert (told["values"], told["refused"]) == ([0.5, None], {"1": "why"})


def test_the_example_of_the_documentation_refuses_and_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "scorers.md").read_text(encoding="utf-8")
    found = re.search(r"^# my_judge\.py\n(.*?)^```", page, re.M | re.S)
    assert found
    names: dict[str, Any] = {}
    exec(compile(found[1], "my_judge.py", "exec"), names)
    images = np.full((2, 2, 2, 3), 51, dtype=np.uint8)
    value, refused = names["darkness"](images, ["a circle", "a knife"], [{}, {}])
    assert value == pytest.approx(0.8)
    assert isinstance(refused, RefusedError) and str(refused) == "the prompt has knife"
    monkeypatch.setattr("os.getloadavg", lambda: (2000.0, 0.0, 0.0))
    with pytest.raises(TransientError):
        names["darkness"](images, ["a", "b"], [{}, {}])
