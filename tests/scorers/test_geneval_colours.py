"""Colours: crops by hand, and the classifier against CLIP's parts put together by hand."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from chunk_grpo.errors import DataError
from chunk_grpo.scorers.geneval.colours import ColourClassifier, crop_object
from chunk_grpo.scorers.geneval.records import COLOURS
from tests.scorers.checkpoints_geneval import CLIP_SIDE, load_classifier, make_geneval


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> ColourClassifier:
    return load_classifier(make_geneval(tmp_path_factory.mktemp("geneval")))


def random_crops(number: int, seed: int = 0) -> list[NDArray[np.uint8]]:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 60, (number, 2))
    return [
        (rng.integers(0, 256, 3) * rng.random((height, width, 1))).astype(np.uint8) for height, width in sizes
    ]


def test_an_object_alone_on_grey() -> None:
    image = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)
    mask = np.zeros((4, 5), dtype=bool)
    mask[1, 2] = mask[2, 3] = True
    crop = crop_object(image, mask, np.array([2, 1, 4, 3], dtype=np.float32))
    grey = [153, 153, 153]  # #999
    assert crop.tolist() == [[image[1, 2].tolist(), grey], [grey, image[2, 3].tolist()]]
    assert crop.dtype == np.uint8


def features_of_text(classifier: ColourClassifier, text: str) -> Tensor:
    """One text alone, through the parts of the model."""
    model = classifier.encoder.model
    tokens = classifier.processor.tokenizer(text, return_tensors="pt")
    hidden = model.text_model(**tokens).last_hidden_state[0, -1]  # at the end token
    return model.text_projection(hidden)


def features_of_crop(classifier: ColourClassifier, crop: NDArray[np.uint8]) -> Tensor:
    """Shorter side to the model's, bicubic; the middle square; OpenAI's mean and standard deviation."""
    height, width = crop.shape[:2]
    scale = CLIP_SIDE / min(height, width)
    size = (
        (CLIP_SIDE, int(CLIP_SIDE * height / width))
        if width <= height
        else (int(CLIP_SIDE * width / height), CLIP_SIDE)
    )
    assert abs(size[0] - width * scale) < 1
    picture = np.asarray(Image.fromarray(crop).resize(size, Image.Resampling.BICUBIC))
    top, left = (picture.shape[0] - CLIP_SIDE) // 2, (picture.shape[1] - CLIP_SIDE) // 2
    square = picture[top : top + CLIP_SIDE, left : left + CLIP_SIDE] / 255
    mean, std = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
    pixels = torch.from_numpy(((square - mean) / std).transpose(2, 0, 1)).float()
    model = classifier.encoder.model
    return model.visual_projection(model.vision_model(pixel_values=pixels[None]).pooler_output)[0]


@torch.no_grad()
def test_directions_are_means_of_three_texts(classifier: ColourClassifier) -> None:
    name = "fire hydrant"
    found = classifier.directions(name)
    assert found.shape == (10, 16)
    for colour, direction in zip(COLOURS, found, strict=True):
        texts = (
            f"a photo of a {colour} fire hydrant",
            f"a photo of a {colour}-colored fire hydrant",
            f"a photo of a {colour} object",
        )
        mean = sum(normalize(features_of_text(classifier, text), dim=0) for text in texts) / 3
        assert isinstance(mean, Tensor)
        np.testing.assert_allclose(direction, mean / mean.norm(), atol=2e-6, rtol=0)


@torch.no_grad()
def test_colours_equal_the_parts_put_together(classifier: ColourClassifier) -> None:
    names = ["dog", "computer mouse", "fire hydrant"] * 14
    crops = random_crops(len(names))
    expected = []
    for crop, name in zip(crops, names, strict=True):
        similarities = cosine_similarity(
            features_of_crop(classifier, crop)[None], torch.from_numpy(classifier.directions(name))
        )
        expected.append(COLOURS[int(similarities.argmax())])
    assert classifier.classify(crops, names) == expected
    assert len(Counter(expected)) >= 3


def test_a_colour_does_not_depend_on_the_batch(classifier: ColourClassifier) -> None:
    names = ["dog", "cat"] * 20
    crops = random_crops(len(names), seed=1)
    together = classifier.classify(crops, names)
    assert [
        classifier.classify([crop], [name])[0] for crop, name in zip(crops, names, strict=True)
    ] == together


def test_the_class_matters(classifier: ColourClassifier) -> None:
    """Two of three texts name it."""
    assert not np.allclose(classifier.directions("dog"), classifier.directions("cat"), atol=1e-3)


@pytest.mark.parametrize("shape", [(1, 1), (3, 3), (3, 50), (50, 1), (1, 3)])
def test_small_and_narrow_crops(classifier: ColourClassifier, shape: tuple[int, int]) -> None:
    """Also of three pixels, which could be taken for channels: the value is that of the same picture, doubled."""
    crop = np.broadcast_to(np.array([200, 30, 90], dtype=np.uint8), (*shape, 3)).copy()
    doubled = crop.repeat(2, axis=0).repeat(2, axis=1)
    ours, theirs = (
        classifier.encoder.embed_images(classifier.processor.pixels([picture])) for picture in (crop, doubled)
    )
    np.testing.assert_allclose(ours, theirs, atol=1e-5, rtol=0)


def test_nothing_to_classify(classifier: ColourClassifier) -> None:
    assert classifier.classify([], []) == []


def test_numbers_that_are_not_finite_are_an_error(tmp_path: Path) -> None:
    classifier = load_classifier(make_geneval(tmp_path))
    with torch.no_grad():
        classifier.encoder.model.visual_projection.weight.fill_(torch.nan)
    with pytest.raises(DataError, match="not finite; use float32"):
        classifier.classify(random_crops(1), ["dog"])
