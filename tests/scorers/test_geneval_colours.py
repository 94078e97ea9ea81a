"""Colours: crops by hand, and the classifier against CLIP's parts put together by hand."""

from collections import Counter

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from chunk_grpo.errors import DataError
from chunk_grpo.scorers.geneval.colours import ColourClassifier, crop_object
from chunk_grpo.scorers.geneval.records import COLOURS
from tests.scorers.checkpoints_geneval import load_classifier, make_geneval


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> ColourClassifier:
    return load_classifier(make_geneval(tmp_path_factory.mktemp("geneval")))


def random_crops(number: int, seed: int = 0) -> list[NDArray[np.uint8]]:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 60, (number, 2))
    return [(rng.integers(0, 256, 3) * rng.random((height, width, 1))).astype(np.uint8) for height, width in sizes]


def test_an_object_alone_on_grey():
    image = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)
    mask = np.zeros((4, 5), dtype=bool)
    mask[1, 2] = mask[2, 3] = True
    crop = crop_object(image, mask, np.array([2, 1, 4, 3], dtype=np.float32))
    grey = [153, 153, 153]  # #999
    assert crop.tolist() == [[image[1, 2].tolist(), grey], [grey, image[2, 3].tolist()]]
    assert crop.dtype == np.uint8


def of_text(classifier: ColourClassifier, text: str) -> NDArray[np.float64]:
    """One text alone; test_clip.py compares encoder and processor with transformers."""
    return classifier.encoder.embed_texts(*classifier.processor.tokens([text]))[0]


def of_crop(classifier: ColourClassifier, crop: NDArray[np.uint8]) -> NDArray[np.float64]:
    return classifier.encoder.embed_images(classifier.processor.pixels([crop]))[0]


def test_directions_are_means_of_three_texts(classifier):
    found = classifier.directions("fire hydrant")
    assert found.shape == (10, 24)
    for colour, direction in zip(COLOURS, found, strict=True):
        texts = (
            f"a photo of a {colour} fire hydrant",
            f"a photo of a {colour}-colored fire hydrant",
            f"a photo of a {colour} object",
        )
        mean = np.mean([of_text(classifier, text) for text in texts], axis=0)
        np.testing.assert_allclose(direction, mean / np.linalg.norm(mean), atol=2e-6, rtol=0)


def test_colour_is_the_nearest_text_direction(classifier):
    names = ["dog", "computer mouse", "fire hydrant"] * 14
    crops = random_crops(len(names))
    expected = [
        COLOURS[int((classifier.directions(name) @ of_crop(classifier, crop)).argmax())]
        for crop, name in zip(crops, names, strict=True)
    ]
    assert classifier.classify(crops, names) == expected
    assert len(Counter(expected)) >= 3


@pytest.mark.parametrize("shape", [(1, 1), (3, 3), (3, 50), (50, 1), (1, 3)])
def test_small_and_narrow_crops(classifier, shape):
    """Also of three pixels, which could be taken for channels: the value is that of the same picture, doubled."""
    crop = np.broadcast_to(np.array([200, 30, 90], dtype=np.uint8), (*shape, 3)).copy()
    doubled = crop.repeat(2, axis=0).repeat(2, axis=1)
    np.testing.assert_allclose(of_crop(classifier, crop), of_crop(classifier, doubled), atol=1e-5, rtol=0)


def test_nothing_to_classify(classifier):
    assert classifier.classify([], []) == []


def test_numbers_that_are_not_finite_are_an_error(tmp_path):
    classifier = load_classifier(make_geneval(tmp_path))
    with torch.no_grad():
        classifier.encoder.model.visual_projection.weight.fill_(torch.nan)
    with pytest.raises(DataError, match="not finite; use float32"):
        classifier.classify(random_crops(1), ["dog"])
