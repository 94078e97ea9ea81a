"""HPSv2.1 on a small random checkpoint: scale, pixels and files; test_every_scorer.py has its scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from chunk_grpo.config.scorers import HPSv2Scorer
from chunk_grpo.errors import DataError
from chunk_grpo.scorers.base import Pictures, ScoreBatch
from chunk_grpo.scorers.hpsv2 import HPSv2, to_pixels
from tests.scorers.checkpoints_clip import MEAN, STD, make_clip
from tests.scorers.checkpoints_hpsv2 import make_hpsv2
from tests.scorers.samples import noise, weights

pytestmark = pytest.mark.usefixtures("models")

PROMPTS = ["the cat", "a red thing", "the cat", "x", "the red cat " * 30]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hpsv2")
    make_hpsv2(folder / "model")
    make_clip(folder / "clip")
    return folder


def hpsv2(folder: Path, **changes: Any) -> HPSv2:
    settings: dict[str, Any] = {"kind": "hpsv2", "splits": ("eval",), "batch_size": 3, "dtype": "float32"}
    settings |= {"model": weights(folder / "model"), "tokenizer": weights(folder / "clip"), "scale": "cosine"}
    return HPSv2("hps", HPSv2Scorer(**settings | changes), "cpu")


def batch(height: int = 40, width: int = 56) -> ScoreBatch:
    return noise(PROMPTS, height, width, seed=3)


def test_published_scale(folder: Path) -> None:
    cosine = hpsv2(folder).score(batch()).values
    assert (np.abs(cosine) <= 1).all()
    np.testing.assert_allclose(hpsv2(folder, scale="cosine*100").score(batch()).values, 100 * cosine, rtol=1e-12)


def unnormalised(pixels: Tensor) -> Tensor:
    return pixels * torch.tensor(STD).view(3, 1, 1) + torch.tensor(MEAN).view(3, 1, 1)


@pytest.mark.parametrize(
    ("height", "width", "rows", "columns"),
    [
        (64, 64, (0, 32), (0, 32)),
        (32, 64, (8, 24), (0, 32)),  # 16 rows, 8 of black above and below
        (64, 22, (0, 32), (10, 21)),  # 11 columns: 10 of black on the left, 11 on the right
        (32, 20, (0, 32), (6, 26)),  # not resized
    ],
)
def test_the_whole_picture_is_shown_on_black(
    height: int, width: int, rows: tuple[int, int], columns: tuple[int, int]
) -> None:
    """A grey picture stays grey, whatever it is resized by."""
    grey: Pictures = np.full((1, height, width, 3), 102, np.uint8)
    expected = torch.zeros(32, 32)
    expected[slice(*rows), slice(*columns)] = 0.4
    found = unnormalised(to_pixels(grey, 32))[0]
    torch.testing.assert_close(found, expected.expand(3, -1, -1), atol=1e-6, rtol=0)


def test_pixels_are_resized_as_floats() -> None:
    """Bicubic weights overshoot beside an edge; a picture of whole numbers would be clipped at 0 and 1."""
    edge: Pictures = np.zeros((1, 64, 64, 3), np.uint8)
    edge[:, :, 33:] = 255
    found = unnormalised(to_pixels(edge, 32))
    assert found.min() < -0.01 and found.max() > 1.01


def test_antialiasing() -> None:
    """Of stripes one pixel wide, a fourfold reduction leaves their mean."""
    stripes: Pictures = np.zeros((1, 128, 128, 3), np.uint8)
    stripes[:, :, ::2] = 200
    found = unnormalised(to_pixels(stripes, 32))[:, :, 4:-4, 4:-4]
    torch.testing.assert_close(found, torch.full_like(found, 100 / 255), atol=5e-3, rtol=0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda content: content.pop("state_dict"), r"cannot be read \(KeyError"),
        (
            lambda content: content["state_dict"].update({"positional_embedding": torch.zeros(77, 100)}),
            "holds no HPSv2 .*widths divisible by 80",
        ),
        (lambda content: content["state_dict"].pop("visual.conv1.weight"), "holds no HPSv2 .*conv1"),
    ],
)
def test_another_file_is_refused(folder: Path, tmp_path: Path, change: Any, said: str) -> None:
    content = torch.load(folder / "model" / "HPS_v2.1_compressed.pt")
    change(content)
    torch.save(content, tmp_path / "HPS_v2.1_compressed.pt")
    with pytest.raises(DataError, match=rf"^scorers\.hps\.model: .*{said}"):
        hpsv2(folder, model=weights(tmp_path)).score(batch())


def test_half_precision_files_are_read(folder: Path, tmp_path: Path) -> None:
    content = torch.load(folder / "model" / "HPS_v2.1_compressed.pt")["state_dict"]
    torch.save(
        {"state_dict": {name: value.half() for name, value in content.items()}}, tmp_path / "HPS_v2.1_compressed.pt"
    )
    found = hpsv2(folder, model=weights(tmp_path)).score(batch()).values
    np.testing.assert_allclose(found, hpsv2(folder).score(batch()).values, atol=0.01)
