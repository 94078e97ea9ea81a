"""Batches that are halved when memory is short, and models that scorers share."""

import numpy as np
import pytest
import torch

from chunk_grpo.errors import ConfigError
from chunk_grpo.scorers.base import ScoreBatch, Scores
from chunk_grpo.scorers.running.configured import chosen_device, in_batches


def images(count: int) -> ScoreBatch:
    pictures = np.arange(count, dtype=np.uint8)[:, None, None, None] * np.ones((1, 2, 2, 3), np.uint8)
    return ScoreBatch(pictures, [f"p{i}" for i in range(count)], [{"i": i} for i in range(count)], range(count))


def test_batches_of_the_asked_size_in_order():
    sizes: list[int] = []

    def score(part: ScoreBatch) -> Scores:
        sizes.append(len(part))
        assert [record["i"] for record in part.metadata] == part.images[:, 0, 0, 0].tolist() == part.groups
        return Scores(part.images[:, 0, 0, 0].astype(float), {"twice": 2.0 * part.images[:, 0, 0, 0]})

    scores = in_batches(images(7), 3, score)
    assert sizes == [3, 3, 1]
    assert scores.values.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert scores.details["twice"].tolist() == [0, 2, 4, 6, 8, 10, 12]


def test_batches_are_halved_until_they_fit_into_memory():
    """Memory for three images: batches of eight and four fail, two fit and stay the batch size."""
    asked: list[int] = []

    def score(part: ScoreBatch) -> Scores:
        asked.append(len(part))
        if len(part) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
        return Scores(part.images[:, 0, 0, 0].astype(float))

    assert in_batches(images(9), 8, score).values.tolist() == list(range(9))
    assert asked == [8, 4, 2, 2, 2, 2, 1]


def test_one_image_that_does_not_fit_and_other_errors_are_raised():
    def score(part: ScoreBatch) -> Scores:
        raise (torch.OutOfMemoryError("out of memory") if len(part) == 1 else RuntimeError("shapes do not match"))

    with pytest.raises(RuntimeError, match="out of memory"):
        in_batches(images(2), 1, score)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        in_batches(images(2), 2, score)


def test_a_device_that_is_not_here(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert [chosen_device(name) for name in ("cpu", "cuda", "cuda:0")] == ["cpu", "cuda", "cuda:0"]
    with pytest.raises(ConfigError, match="must be one of the 1 GPUs that torch sees here, got 'cuda:1'; set null"):
        chosen_device("cuda:1")
    with pytest.raises(ConfigError, match="device must be as cuda:1 or cpu, got 'gpu'"):
        chosen_device("gpu")
