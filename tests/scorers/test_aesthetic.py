"""LAION's aesthetic predictor on small random checkpoints, against the authors' formula; its real head on request."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import CLIPModel

from chunk_grpo.config.scorers import AestheticScorer
from chunk_grpo.errors import DataError
from chunk_grpo.scorers.aesthetic import MODEL_FILES, Aesthetic, load_head
from chunk_grpo.scorers.base import ScoreBatch
from tests.scorers.checkpoints_aesthetic import LAYERS, make_aesthetic
from tests.scorers.checkpoints_clip import make_clip
from tests.scorers.samples import noise, weights
from tests.scorers.test_clip import by_hand

pytestmark = pytest.mark.usefixtures("models")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("aesthetic")
    make_aesthetic(folder / "head")
    make_clip(folder / "clip")
    return folder


def aesthetic(folder: Path, **changes: Any) -> Aesthetic:
    settings: dict[str, Any] = {"kind": "aesthetic", "splits": ("eval",), "batch_size": 2, "dtype": "float32"}
    settings |= {"model": weights(folder / "head"), "encoder": weights(folder / "clip")}
    return Aesthetic("beauty", AestheticScorer(**settings | changes), "cpu")


def batch(prompts: tuple[str, ...] = ("a", "b", "c", "d", "e")) -> ScoreBatch:
    return noise(prompts, 40, 56, seed=5)


def in_numpy(tensors: dict[str, torch.Tensor], embeddings: NDArray[np.float64]) -> NDArray[np.float64]:
    """simple_inference.py: `normalized`, then `MLP` without its inactive dropout."""
    length = np.atleast_1d(np.linalg.norm(embeddings, 2, -1))
    length[length == 0] = 1
    x = embeddings / np.expand_dims(length, -1)
    for number in LAYERS:
        weight, bias = (tensors[f"layers.{number}.{part}"].double().numpy() for part in ("weight", "bias"))
        x = x @ weight.T + bias
    return x[:, 0]


def test_rating_is_the_authors_one_image_at_a_time(folder: Path) -> None:
    given = batch()
    clip = CLIPModel.from_pretrained(folder / "clip").eval()
    tensors = torch.load(folder / "head" / MODEL_FILES[0])
    expected = []
    for image in given.images:
        with torch.no_grad():
            pixels = torch.tensor(by_hand(image)[None]).float()
            features = clip.get_image_features(pixel_values=pixels).pooler_output
        assert abs(features.norm().item() - 1) > 0.1  # so that the normalisation shows
        expected += in_numpy(tensors, features.double().numpy()).tolist()
    assert np.ptp(expected) > 0.1
    np.testing.assert_allclose(aesthetic(folder).score(given).values, expected, atol=1e-5)


def test_score_does_not_depend_on_prompt(folder: Path) -> None:
    scorer = aesthetic(folder)
    assert scorer.needs == frozenset()
    np.testing.assert_array_equal(
        scorer.score(batch()).values, scorer.score(batch(("x", "y", "the cat", "b", "a"))).values
    )


@pytest.mark.parametrize("content", [torch.zeros(3), [1, 2]])
def test_a_file_of_another_kind_is_refused(folder: Path, tmp_path: Path, content: object) -> None:
    torch.save(content, tmp_path / MODEL_FILES[0])
    with pytest.raises(DataError, match=r"^scorers\.beauty\.model: .*cannot be read \(AttributeError"):
        aesthetic(folder, model=weights(tmp_path)).score(batch())


@pytest.mark.network
def test_the_authors_own_head_is_loaded(tmp_path: Path) -> None:
    """AESTHETIC_SOURCE: a clone of christophschuhmann/improved-aesthetic-predictor; its head of 3.7 MB is in it."""
    shutil.copy(Path(os.environ["AESTHETIC_SOURCE"]) / MODEL_FILES[0], tmp_path)
    head = load_head("scorers.beauty.model", tmp_path, 768, "cpu")
    embeddings = np.random.default_rng(0).normal(size=(4, 768))
    unit = torch.from_numpy(embeddings / np.linalg.norm(embeddings, axis=-1, keepdims=True)).float()
    expected = in_numpy(torch.load(tmp_path / MODEL_FILES[0], map_location="cpu"), embeddings)
    np.testing.assert_allclose(head(unit)[:, 0].numpy(), expected, atol=1e-5)
