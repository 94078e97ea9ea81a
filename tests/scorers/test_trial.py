"""A trial of a scorer: its images and prompts, and the seconds that it reports."""

import json
import logging
from collections.abc import Callable

import numpy as np
import pytest

from chunk_grpo.errors import DataError
from chunk_grpo.scorers import trial
from chunk_grpo.scorers.base import ScoreBatch, Scores
from chunk_grpo.scorers.trial import Sample, made_up_pictures, spread, try_scorer
from tests.scorers.fake_clock import FakeClock
from tests.shapes_scorers import shapes_scorer

Score = Callable[[ScoreBatch], Scores]


class Scorer:
    """Loads for 10 s, and takes 2 s an image; records its batches."""

    def __init__(self, clock: FakeClock, *, groupwise: bool = False) -> None:
        self.clock, self.groupwise, self.batches = clock, groupwise, list[ScoreBatch]()

    def score(self, batch: ScoreBatch) -> Scores:
        self.clock.sleep(2.0 * len(batch) + (0.0 if self.batches else 10.0))
        self.batches.append(batch)
        return Scores(np.zeros(len(batch)))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """Seconds that pass only while a scorer works."""
    made = FakeClock()
    monkeypatch.setattr(trial, "time", made)
    return made


def rows(split: str, count: int) -> list[dict[str, str]]:
    return [{"prompt": f"{split} {n}", "metadata": json.dumps({"number": n})} for n in range(count)]


TRAIN, EVAL = Sample("train", rows("train", 2), 16, 24), Sample("eval", rows("eval", 3), 32, 8)


def test_loading_time_excludes_scoring_of_first_image(clock: FakeClock) -> None:
    scorer = Scorer(clock)
    found = try_scorer("own", scorer, [TRAIN, EVAL], images_per_prompt=4)
    assert (found.loading, found.image) == (10.0, 2.0)
    assert [batch.images.shape for batch in scorer.batches] == [(1, 16, 24, 3), (1, 16, 24, 3), (3, 32, 8, 3)]
    assert [list(batch.prompts) for batch in scorer.batches] == [
        ["train 0"],
        ["train 1"],
        ["eval 0", "eval 1", "eval 2"],
    ]
    assert [record["number"] for batch in scorer.batches for record in batch.metadata] == [0, 1, 0, 1, 2]


def test_single_image_gives_no_time_per_image(clock: FakeClock) -> None:
    found = try_scorer("own", Scorer(clock), [Sample("eval", rows("eval", 1), 8, 8)], images_per_prompt=1)
    assert (found.loading, found.image) == (12.0, None)


def test_a_groupwise_scorer_gets_whole_groups(clock: FakeClock) -> None:
    scorer = Scorer(clock, groupwise=True)
    found = try_scorer("own", scorer, [EVAL], images_per_prompt=2)
    assert (found.loading, found.image) == (10.0, 2.0)
    assert [list(batch.groups) for batch in scorer.batches] == [[0, 0], [1, 1, 2, 2]]
    assert list(scorer.batches[1].prompts) == ["eval 1", "eval 1", "eval 2", "eval 2"]
    assert not np.array_equal(scorer.batches[0].images[0], scorer.batches[0].images[1])


def refusing(monkeypatch: pytest.MonkeyPatch, refuses: Callable[[str], bool]) -> object:
    scorer = shapes_scorer("shapes-vivid")

    def score(batch: ScoreBatch) -> Scores:
        refused = {row: "no" for row, prompt in enumerate(batch.prompts) if refuses(prompt)}
        return Scores(np.array([np.nan if row in refused else 1.0 for row in range(len(batch))]), {}, refused)

    monkeypatch.setattr(scorer, "score", score)
    return scorer


def test_some_refused_images_are_reported(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    try_scorer("own", refusing(monkeypatch, lambda prompt: prompt == "eval 1"), [EVAL], 1)
    assert "scorer own: refuses 1 of 3 images of the trial, such as that of 'eval 1': no" in caplog.text


def test_a_scorer_that_refuses_everything_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"^scorer own: refuses 3 of 3 images .* set trial.images: 0"):
        try_scorer("own", refusing(monkeypatch, lambda prompt: True), [EVAL], 1)


@pytest.mark.parametrize(
    ("value", "kind", "message"), [(np.nan, DataError, "scores must be finite"), (None, KeyError, "a bug")]
)
def test_the_log_names_the_prompt_of_a_failure(
    value: float | None,
    kind: type[Exception],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    scorer = shapes_scorer("shapes-vivid")

    def score(batch: ScoreBatch) -> Scores:
        if value is None:
            raise KeyError("a bug")
        return Scores(np.full(len(batch), value))

    monkeypatch.setattr(scorer, "score", score)
    with caplog.at_level(logging.ERROR), pytest.raises(kind, match=message):
        try_scorer("own", scorer, [EVAL], 1)
    assert "scorer own: failed in its trial, in the split eval, with the prompt 'eval 0'" in caplog.text


def test_made_up_pictures() -> None:
    many = made_up_pictures(4, 64, 48)
    assert (many.dtype, many.shape) == (np.uint8, (4, 64, 48, 3))
    assert np.array_equal(made_up_pictures(2, 64, 48), many[:2])
    assert all(image.std() > 30 for image in many)
    assert len({image.tobytes() for image in many}) == 4


def test_rows_are_spread() -> None:
    ten = rows("eval", 10)
    assert [row["prompt"] for row in spread(ten, 3)] == ["eval 0", "eval 3", "eval 6"]
    assert spread(ten[:2], 5) == ten[:2]
