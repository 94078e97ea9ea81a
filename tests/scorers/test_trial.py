"""A trial of a scorer: its images and prompts, and the seconds that it reports."""

import json
from collections.abc import Callable

import numpy as np
import pytest

from chunk_grpo.errors import DataError
from chunk_grpo.scorers import trial
from chunk_grpo.scorers.base import ScoreBatch, Scores
from chunk_grpo.scorers.trial import Sample, made_up_pictures, spread, try_scorer
from tests.scorers.fake_clock import FakeClock

Score = Callable[[ScoreBatch], Scores]


class Scorer:
    """Loads for 10 s, and takes 2 s an image; records its batches."""

    def __init__(self, clock: FakeClock, *, groupwise: bool = False, answer: Score | None = None) -> None:
        self.clock, self.groupwise, self.batches = clock, groupwise, list[ScoreBatch]()
        self.answer = answer or (lambda batch: Scores(np.zeros(len(batch))))

    def score(self, batch: ScoreBatch) -> Scores:
        self.clock.sleep(2.0 * len(batch) + (0.0 if self.batches else 10.0))
        self.batches.append(batch)
        return self.answer(batch)


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
    prompts = [list(batch.prompts) for batch in scorer.batches]
    assert prompts == [["train 0"], ["train 1"], ["eval 0", "eval 1", "eval 2"]]
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


def refusing(*prompts: str) -> Score:
    def answer(batch: ScoreBatch) -> Scores:
        refused = {row: "no" for row, prompt in enumerate(batch.prompts) if prompt in prompts}
        return Scores(np.array([np.nan if row in refused else 1.0 for row in range(len(batch))]), {}, refused)

    return answer


def test_some_refused_images_are_reported(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    try_scorer("own", Scorer(clock, answer=refusing("eval 1")), [EVAL], 1)
    assert "scorer own: refuses 1 of 3 images of the trial, such as that of 'eval 1': no" in caplog.text


def test_a_scorer_that_refuses_everything_fails(clock: FakeClock) -> None:
    with pytest.raises(DataError, match=r"^scorer own: refuses 3 of 3 images .* set trial.images: 0"):
        try_scorer("own", Scorer(clock, answer=refusing("eval 0", "eval 1", "eval 2")), [EVAL], 1)


def test_the_log_names_the_prompt_of_a_failure(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    scorer = Scorer(clock, answer=lambda batch: Scores(np.full(len(batch), np.nan)))
    with pytest.raises(DataError, match="scores must be finite"):
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
