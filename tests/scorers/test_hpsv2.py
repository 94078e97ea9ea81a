"""HPSv2.1 on a small random checkpoint, against open_clip's formulas written out, one image at a time."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv2d, gelu, layer_norm

from chunk_grpo.config.scorers import HPSv2Scorer
from chunk_grpo.errors import DataError
from chunk_grpo.scorers.base import Pictures, ScoreBatch
from chunk_grpo.scorers.clip_model import tokenize
from chunk_grpo.scorers.hpsv2 import HPSv2, to_pixels
from tests.scorers.checkpoints_clip import MEAN, STD, make_clip
from tests.scorers.checkpoints_hpsv2 import IMAGE, make_hpsv2
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


class Clip:
    """open_clip's CLIP (model.py, transformer.py of hpsv2 1.2.0) on its own weights."""

    def __init__(self, folder: Path) -> None:
        self.tensors: dict[str, Tensor] = torch.load(folder / "HPS_v2.1_compressed.pt")["state_dict"]

    def norm(self, name: str, x: Tensor) -> Tensor:
        weight, bias = self.tensors[f"{name}.weight"], self.tensors[f"{name}.bias"]
        return layer_norm(x, x.shape[-1:], weight, bias, 1e-5)

    def blocks(self, prefix: str, x: Tensor, head: int, *, causal: bool) -> Tensor:
        hidden_from = torch.ones(len(x), len(x)).triu(1).bool() & torch.tensor(causal)
        for number in range(2):
            names = f"{prefix}transformer.resblocks.{number}"
            part = {k.removeprefix(f"{names}."): v for k, v in self.tensors.items() if k.startswith(names)}
            joined = self.norm(f"{names}.ln_1", x) @ part["attn.in_proj_weight"].T + part["attn.in_proj_bias"]
            mixed = []
            for q, k, v in zip(*(third.split(head, -1) for third in joined.chunk(3, -1)), strict=True):
                scores = (q @ k.T / math.sqrt(head)).masked_fill(hidden_from, -math.inf)
                mixed.append(scores.softmax(-1) @ v)
            x = x + torch.cat(mixed, -1) @ part["attn.out_proj.weight"].T + part["attn.out_proj.bias"]
            wide = gelu(self.norm(f"{names}.ln_2", x) @ part["mlp.c_fc.weight"].T + part["mlp.c_fc.bias"])
            x = x + wide @ part["mlp.c_proj.weight"].T + part["mlp.c_proj.bias"]
        return x

    def image(self, pixels: Tensor) -> Tensor:
        kernel = self.tensors["visual.conv1.weight"]
        patches = conv2d(pixels[None], kernel, stride=kernel.shape[-1])[0].flatten(1).T
        x = torch.cat([self.tensors["visual.class_embedding"][None], patches])
        x = self.norm("visual.ln_pre", x + self.tensors["visual.positional_embedding"])
        x = self.blocks("visual.", x, 80, causal=False)
        return self.norm("visual.ln_post", x[0]) @ self.tensors["visual.proj"]

    def text(self, ids: Tensor) -> Tensor:
        x = self.tensors["token_embedding.weight"][ids] + self.tensors["positional_embedding"]
        x = self.norm("ln_final", self.blocks("", x, 64, causal=True))
        return x[ids.argmax()] @ self.tensors["text_projection"]

    def cosine(self, pixels: Tensor, ids: Tensor) -> float:
        image, text = self.image(pixels), self.text(ids)
        return (image @ text / image.norm() / text.norm()).item()


def padded(ids: Tensor, mask: Tensor) -> Tensor:
    """open_clip's 77 tokens: zeros after the end."""
    return torch.nn.functional.pad(ids[mask.bool()], (0, 77 - int(mask.sum())))


def test_score_is_open_clips_one_image_at_a_time(folder: Path) -> None:
    given, scorer, original = batch(), hpsv2(folder), Clip(folder / "model")
    found = scorer.score(given).values
    _, tokenizer = scorer.models
    expected = []
    for image, prompt in zip(given.images, given.prompts, strict=True):
        (ids,), (mask,) = tokenize(tokenizer, [prompt], 77)
        expected.append(original.cosine(to_pixels(image[None], IMAGE)[0], padded(ids, mask)))
    assert np.ptp(expected) > 0.1
    np.testing.assert_allclose(found, expected, atol=2e-6)


def test_published_scale(folder: Path) -> None:
    cosine = hpsv2(folder).score(batch()).values
    assert (np.abs(cosine) <= 1).all()
    np.testing.assert_allclose(
        hpsv2(folder, scale="cosine*100").score(batch()).values, 100 * cosine, rtol=1e-12
    )


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
            lambda content: content["state_dict"].update(text_projection=torch.zeros(100, 48)),
            r"text_projection is \[100, 48\] in place of \[128, 48\]",
        ),
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
        {"state_dict": {name: value.half() for name, value in content.items()}},
        tmp_path / "HPS_v2.1_compressed.pt",
    )
    found = hpsv2(folder, model=weights(tmp_path)).score(batch()).values
    np.testing.assert_allclose(found, hpsv2(folder).score(batch()).values, atol=0.01)


def test_another_tokenizer_is_refused(folder: Path, tmp_path: Path) -> None:
    make_hpsv2(tmp_path, vocabulary=600)
    with pytest.raises(DataError, match=r"^scorers\.hps\.tokenizer: .* 520 tokens .*needs 599 at the end"):
        hpsv2(folder, model=weights(tmp_path)).score(batch())
