"""The detector: post-processing against one written as loops, its files, and independence of the batch."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from chunk_grpo.errors import DataError
from chunk_grpo.scorers.base import Pictures
from chunk_grpo.scorers.geneval.detector import Detector, check_classes, load_detector, postprocess
from chunk_grpo.scorers.geneval.rules import Detections
from tests.scorers.checkpoints_geneval import make_geneval

Detection = tuple[int, float, tuple[int, int, int, int], list[list[bool]]]


def enlarge(mask: list[list[float]], height: int, width: int) -> list[list[float]]:
    """Bilinear between centres of pixels, edges repeated, pixel by pixel."""

    def between(at: int, size: int, old: int) -> tuple[int, int, float]:
        place = max((at + 0.5) * old / size - 0.5, 0.0)
        low = min(int(place), old - 1)
        return low, min(low + 1, old - 1), place - low

    result = []
    for y in range(height):
        top, bottom, down = between(y, height, len(mask))
        row = []
        for x in range(width):
            left, right, over = between(x, width, len(mask[0]))
            upper = mask[top][left] * (1 - over) + mask[top][right] * over
            lower = mask[bottom][left] * (1 - over) + mask[bottom][right] * over
            row.append(upper * (1 - down) + lower * down)
        result.append(row)
    return result


def slow_postprocess(
    classes: Tensor, masks: Tensor, input_size: tuple[int, int], image_size: tuple[int, int]
) -> list[Detection]:
    """Every step of mmdet's as a loop over plain numbers, in float64."""
    pairs = []
    for query, logits in enumerate(classes.tolist()):
        total = sum(math.exp(logit) for logit in logits)
        pairs += [(math.exp(logit) / total, query, label) for label, logit in enumerate(logits[:-1])]
    enlarged = [enlarge(enlarge(mask, *input_size), *image_size) for mask in masks.tolist()]
    found: list[Detection] = []
    for probability, query, label in sorted(pairs, reverse=True)[:100]:
        large = enlarged[query]
        inside = [(x, y, logit) for y, row in enumerate(large) for x, logit in enumerate(row) if logit > 0]
        certainty = sum(1 / (1 + math.exp(-logit)) for _, _, logit in inside) / (len(inside) + 1e-6)
        xs, ys = [x for x, _, _ in inside], [y for _, y, _ in inside]
        box = (min(xs), min(ys), max(xs) + 1, max(ys) + 1) if inside else (0, 0, 0, 0)
        found.append((label, probability * certainty, box, [[logit > 0 for logit in row] for row in large]))
    return sorted(found, key=lambda detection: -detection[1])


def by_score(found: Detections) -> Detections:
    order = np.argsort(-found.scores, kind="stable")
    return Detections(found.labels[order], found.scores[order], found.boxes[order], found.masks[order])


def random_logits(seed: int, queries: int = 12, classes: int = 80) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    masks = torch.randn(queries, 4, 6, generator=generator) * 4
    masks[1] = -masks[1].abs()  # an empty mask
    return torch.randn(queries, classes + 1, generator=generator) * 2, masks


@pytest.mark.parametrize("image_size", [(16, 24), (11, 17), (30, 20)])
def test_postprocessing_equals_plain_loops(image_size):
    logits = random_logits(0)
    slow = [found for found in slow_postprocess(*logits, (16, 24), image_size) if found[1] > 0]
    fast = by_score(postprocess(*logits, (16, 24), image_size, min_score=0))
    assert len(fast.scores) == len(slow)
    types = [each.dtype for each in (fast.labels, fast.scores, fast.boxes, fast.masks)]
    assert types == [np.int64, np.float32, np.float32, np.bool_]
    assert 90 < len(slow) < 100  # those of the empty mask are out
    assert fast.labels.tolist() == [label for label, _, _, _ in slow]
    np.testing.assert_allclose(fast.scores, [score for _, score, _, _ in slow], rtol=2e-6)
    assert fast.boxes.tolist() == [list(map(float, box)) for _, _, box, _ in slow]
    assert fast.masks.tolist() == [mask for _, _, _, mask in slow]


def test_score_threshold_only_removes_detections():
    logits = random_logits(2)
    everything = by_score(postprocess(*logits, (16, 24), (16, 24), min_score=0))
    limit = float(everything.scores[5])
    some = by_score(postprocess(*logits, (16, 24), (16, 24), min_score=limit))
    assert some.labels.tolist() == everything.labels[:5].tolist()
    assert some.scores.tolist() == everything.scores[:5].tolist()
    none = postprocess(*logits, (16, 24), (16, 24), min_score=1.0)
    assert (none.labels.shape, none.boxes.shape, none.masks.shape) == ((0,), (0, 4), (0, 16, 24))


def test_one_query_by_hand():
    """Logits 2 for class 3, 0 for 79 others and "no object"; a mask of logit 1 in the left half, -1 in the right."""
    classes = torch.zeros(1, 81)
    classes[0, 3] = 2
    masks = torch.cat([torch.ones(1, 8, 4), -torch.ones(1, 8, 4)], dim=2)
    found = by_score(postprocess(classes, masks, (8, 8), (8, 8), min_score=0))
    inside = 1 / (1 + math.exp(-1))
    assert found.labels[0] == 3
    assert found.scores[0] == pytest.approx(math.exp(2) / (math.exp(2) + 80) * inside, rel=1e-6)
    assert found.scores[1] == pytest.approx(1 / (math.exp(2) + 80) * inside, rel=1e-6)
    assert len(found.scores) == 80  # the query is a detection of each class, but not of "no object"
    assert found.boxes[0].tolist() == [0, 0, 4, 8]


def test_numbers_that_are_not_finite_are_an_error():
    classes, masks = random_logits(3)
    classes[0, 0] = torch.nan
    with pytest.raises(DataError, match="not finite; use float32"):
        postprocess(classes, masks, (16, 24), (16, 24), min_score=0)


# The model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_geneval(tmp_path_factory.mktemp("geneval")) / "detector"


@pytest.fixture(scope="module")
def detector(folder: Path) -> Detector:
    return load_detector("scorers.geneval.detector", folder, torch.float32, "cpu")


def pictures(number: int, height: int, width: int) -> Pictures:
    rng = np.random.default_rng(number)
    coarse = rng.integers(0, 256, (number, -(-height // 8), -(-width // 8), 3), dtype=np.uint8)
    return coarse.repeat(8, axis=1).repeat(8, axis=2)[:, :height, :width]


@pytest.mark.parametrize(("height", "width"), [(48, 48), (96, 40), (33, 70)])
def test_any_size_of_image(detector, height, width):
    found = detector.detect(pictures(2, height, width), 0.3)
    assert [detections.masks.shape[1:] for detections in found] == [(height, width)] * 2
    for detections in found:
        assert len(detections.scores) > 3
        assert detections.scores.min() > 0.3
        for box, mask in zip(detections.boxes.astype(int), detections.masks, strict=True):
            left, top, right, bottom = box
            assert mask[top:bottom, left:right].sum() == mask.sum() > 0


def test_model_gets_the_processors_pixels(detector):
    """Pixels by hand, for an image of the model's size, which is not resized."""
    image = pictures(1, 64, 64)
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    pixels = torch.from_numpy(((image / 255 - mean) / std).transpose(0, 3, 1, 2)).float()
    with torch.inference_mode():
        output = detector.model(pixel_values=pixels)
    logits = output.class_queries_logits[0], output.masks_queries_logits[0]
    expected = by_score(postprocess(*logits, (64, 64), (64, 64), min_score=0.3))
    found = by_score(detector.detect(image, 0.3)[0])
    assert found.labels.tolist() == expected.labels.tolist()
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-4)


def test_weights_that_files_lack_are_not_used(folder, detector):
    """Files of older versions of transformers have no norm at the backbone's end: it changes nothing."""
    assert not any("swin.layernorm" in name for name in load_file(folder / "model.safetensors"))
    image = pictures(1, 64, 64)
    expected = detector.detect(image, 0.3)[0]
    changed = load_detector("key", folder, torch.float32, "cpu")
    with torch.no_grad():
        changed.model.get_parameter("model.pixel_level_module.encoder.swin.layernorm.weight").fill_(torch.nan)
    assert changed.detect(image, 0.3)[0].scores.tolist() == expected.scores.tolist()


def test_stored_indices_are_not_used(folder):
    """Files of older versions store relative_position_index; here as zeros, which no window has."""
    stored = [name for name in load_file(folder / "model.safetensors") if name.endswith("relative_position_index")]
    assert len(stored) == 4
    model = load_detector("key", folder, torch.float32, "cpu").model
    indices = [value for name, value in model.named_buffers() if name.endswith("relative_position_index")]
    assert [len(index.unique()) for index in indices] == [49] * 4  # (2 * 4 - 1)^2 offsets in a window of 4


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "detector"))


def edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_other_models_are_refused(copy):
    labels = json.loads((copy / "config.json").read_text())["id2label"]
    edit_config(copy, id2label=labels | {"64": "computer mouse"})
    check_classes("key", copy)  # GenEval's name of it
    edit_config(copy, id2label=labels | {"0": "cat", "15": "person"})
    with pytest.raises(DataError, match=r"key: class 0 must be 'person', but id2label in .* says 'cat'"):
        check_classes("key", copy)
    edit_config(copy, id2label={str(index): f"LABEL_{index}" for index in range(133)})
    with pytest.raises(DataError, match=r"with 80 classes, but id2label in .* has 133"):
        check_classes("key", copy)
    edit_config(copy, model_type="maskformer")
    with pytest.raises(DataError, match=r"must be a model of type mask2former, but .* is 'maskformer'"):
        check_classes("key", copy)
    (copy / "config.json").write_text("[]")
    with pytest.raises(DataError, match=r"config.json cannot be read"):
        check_classes("key", copy)
