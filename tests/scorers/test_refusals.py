"""Images without a score because the scorer refused them: evaluation allows them, reward and contract do not."""

import re
from typing import Any

import numpy as np
import pytest

from chunk_grpo.errors import DataError, RefusedError, TransientError
from chunk_grpo.scorers.base import Scores, check_scores
from chunk_grpo.scorers.contract import check_contract
from chunk_grpo.scorers.reward import Reward
from chunk_grpo.scorers.running.external import External
from tests.scorers.odd_scorers import KEY, batch, settings
from tests.scorers.servers import ROOT


def test_only_refused_images_may_lack_a_score():
    values = np.array([np.nan, 0.5, np.nan])
    with pytest.raises(DataError, match=r"scorer odd: image 2 of the batch \('c'\) got nan"):
        check_scores("odd", Scores(values, {}, {0: "why"}), ["a", "b", "c"])
    details = {"d": np.array([np.nan, np.nan, 1.0])}
    with pytest.raises(DataError, match="detail 'd' needs one finite value"):
        check_scores("odd", Scores(np.array([np.nan, 0.5, 1.0]), details, {0: "why"}), ["a", "b", "c"])


def test_reward_raises_on_refused_image():
    reward = Reward({KEY: External(KEY, settings())}, {KEY: 1.0})
    with pytest.raises(
        DataError, match=r"^scorer odd: refuses an image of the prompt 'prompt x' \(the reason"
    ):
        reward.scores(batch("refuse"))


def test_the_contract_needs_images_that_are_judged():
    with pytest.raises(DataError, match=r"^contract: scorer odd refuses image 1 \(the reason"):
        check_contract(External(KEY, settings()), batch("refuse"))


def test_the_example_of_the_documentation_refuses_and_waits(monkeypatch):
    page = (ROOT / "docs" / "own_scorers.md").read_text(encoding="utf-8")
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
