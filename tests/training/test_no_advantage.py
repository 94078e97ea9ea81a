"""An iteration that nothing can be learnt from is told: the images are the same, or the reward is."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunk_grpo.scorers.base import ScoreBatch, Scores
from chunk_grpo.scorers.reward import Reward
from chunk_grpo.training.run import TrainingData
from tests.shapes_scorers import ScorerForTests
from tests.training.conftest import Outcome

Train = Callable[..., Outcome]
WARNING = (
    "the rewards are equal within every group, so nothing is learnt. Either the images have become equal (lower "
    "train.learning_rate), or the reward does not distinguish them."
)


class ByPrompt(ScorerForTests):
    """One score for all images of a prompt."""

    settings: Any = None

    def score(self, batch: ScoreBatch) -> Scores:
        return Scores(np.array([float(len(prompt)) for prompt in batch.prompts]))


def test_equal_rewards_within_every_group_are_told(
    train: Train, data: TrainingData, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    weights = {"shapes-graded": 1.0, "shapes-vivid": 0.6}
    flat = replace(data, reward=Reward(dict.fromkeys(weights, ByPrompt()), weights))
    with caplog.at_level(logging.WARNING):
        found = train(tmp_path / "flat", on=flat, iterations=2)
    told = [record.getMessage() for record in caplog.records if "nothing is learnt" in record.getMessage()]
    assert told == [f"iteration {number}: {WARNING}" for number in (1, 2)]
    assert [value for _, name, value in found.rows if name == "degenerate_groups"] == [2.0, 2.0]


def test_rewards_that_differ_give_no_warning(
    train: Train, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        train(tmp_path, iterations=1)
    assert not [record for record in caplog.records if "nothing is learnt" in record.getMessage()]
