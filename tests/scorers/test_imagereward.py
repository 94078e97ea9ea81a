"""ImageReward on small random checkpoints: tokens, pixels, sizes and files; test_every_scorer.py has its rewards."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from chunk_grpo.config.scorers import ImageRewardScorer
from chunk_grpo.errors import DataError
from chunk_grpo.scorers.base import Pictures, ScoreBatch
from chunk_grpo.scorers.imagereward import ImageReward, load_tokenizer, to_pixels, tokenize
from tests.scorers.checkpoints_imagereward import FULL, WORDS, Sizes, _shapes, make_imagereward
from tests.scorers.samples import noise, reconfigure, weights

pytestmark = pytest.mark.usefixtures("models")

PROMPTS = ["the red cat", "a cat, and 2 dogs.", "x", "the " * 50, "[DEC] CATS!"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_imagereward(tmp_path_factory.mktemp("imagereward"))


def imagereward(folder: Path, **changes: Any) -> ImageReward:
    settings: dict[str, Any] = {"model": weights(folder), "tokenizer": weights(folder / "bert-base-uncased")}
    settings |= {"kind": "imagereward", "splits": ("eval",), "batch_size": 16, "dtype": "float32"} | changes
    return ImageReward("ir", ImageRewardScorer(**settings), "cpu")


def batch(height: int = 60, width: int = 80, prompts: list[str] = PROMPTS) -> ScoreBatch:
    return noise(prompts, height, width, seed=5)


def pixels_by_hand(image: Pictures, size: int) -> NDArray[np.float64]:
    height, width = image.shape[:2]
    if height < width:
        tall, wide = size, int(size * width / height)
    else:
        tall, wide = int(size * height / width), size
    left, top = (math.floor((wide - size) / 2 + 0.5), math.floor((tall - size) / 2 + 0.5))
    if (wide - size) % 4 == 1:
        left -= 1  # a half goes to the even number: 0.5 to 0, 1.5 to 2, 2.5 to 2
    if (tall - size) % 4 == 1:
        top -= 1
    picture = Image.fromarray(image).resize((wide, tall), Image.Resampling.BICUBIC)
    cut = np.asarray(picture.crop((left, top, left + size, top + size)), dtype=np.float64) / 255
    mean, std = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
    return ((cut - mean) / std).transpose(2, 0, 1)


def ids_by_hand(*words: str) -> list[int]:
    numbers = {"[DEC]": len(WORDS), "[ENC]": len(WORDS) + 1} | {word: n for n, word in enumerate(WORDS)}
    known = [numbers[word] for word in ("[CLS]", *words, "[SEP]")]
    return known + [0] * (35 - len(known))


IDS = [
    ids_by_hand("the", "red", "cat"),
    ids_by_hand("a", "cat", ",", "a", "##n", "##d", "2", "d", "##o", "##g", "##s", "."),
    ids_by_hand("x"),
    ids_by_hand(*["the"] * 33),
    ids_by_hand("[DEC]", "cat", "##s", "[UNK]"),
]
"""Tokens of PROMPTS: lower case, cut to 35 with [CLS] and [SEP]; a special token in a prompt is that token."""


def test_tokens_by_hand(folder):
    tokenizer = load_tokenizer("k", folder / "bert-base-uncased", len(WORDS) + 2)
    found = tokenize(tokenizer, PROMPTS)
    assert found["input_ids"].tolist() == IDS
    assert found["attention_mask"].tolist() == [[int(number != 0) for number in row] for row in IDS]


@pytest.mark.parametrize(
    ("height", "width"), [(60, 80), (80, 60), (48, 48), (300, 300), (48, 51), (53, 48), (48, 49), (50, 77)]
)
def test_pixels_by_hand(height, width):
    """Margins of 16, none, 3 (1.5 to 2), 5 (2.5 to 2) and 1 (0.5 to 0) pixels; a longer side of 73.92, cut to 73."""
    images = batch(height, width).images
    expected = np.stack([pixels_by_hand(image, 48) for image in images])
    np.testing.assert_allclose(to_pixels(images, 48), expected, atol=1e-6)


def test_bfloat16_is_near_and_keeps_the_head_in_float32(folder):
    full, half = imagereward(folder), imagereward(folder, dtype="bfloat16")
    apart = np.abs(half.score(batch()).values - full.score(batch()).values)
    assert 1e-5 < apart.max() < 0.2
    types = {name.partition(".")[0]: value.dtype for name, value in half.models[0].named_parameters()}
    assert types == {"vision": torch.bfloat16, "text": torch.bfloat16, "head": torch.float32}


def test_sizes_are_read_from_the_files(tmp_path):
    other = make_imagereward(tmp_path, sizes=Sizes(width=128, patch=8, image=40, hidden=24, heads=3))
    reconfigure(other, "med_config.json", lambda med: med.update(layer_norm_eps=1e-2, encoder_width=7))
    scorer = imagereward(other)
    assert np.ptp(scorer.score(batch()).values) > 1
    vision, text = (part.config for part in (scorer.models[0].vision, scorer.models[0].text))
    assert (vision.num_attention_heads, vision.patch_size, vision.image_size) == (2, 8, 40)
    assert (text.hidden_size, text.num_attention_heads, text.layer_norm_eps) == (24, 3, 1e-2)
    assert text.encoder_hidden_size == 128


def test_the_whole_models_weights_fill_the_published_file():
    """446.7 million numbers of 4 bytes, 512 of 8, and an index of some 300 bytes a tensor.

    The file's size: commit 7a9e21f of THUDM/ImageReward on the hub, the Git LFS pointer of ImageReward.pt.
    """
    shapes = _shapes(FULL) | {"blip.text_encoder.embeddings.word_embeddings.weight": (30524, 768)}
    numbers = sum(math.prod(shape) for shape in shapes.values())
    assert numbers == 446_665_953
    assert 200 < (1_786_880_927 - 4 * numbers - 8 * 512) / (len(shapes) + 1) < 400


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"weight": torch.ones(2)}, "model: .* holds no ImageReward .*patch_embed"),
        ({"extra": Path("a class that is no tensor")}, r"model: .* cannot be read \(UnpicklingError"),
    ],
    ids=["another model", "code, which is not run"],
)
def test_other_contents_are_refused(tmp_path, tensors, said):
    broken = make_imagereward(tmp_path)
    torch.save(tensors, broken / "ImageReward.pt")
    with pytest.raises(DataError, match=rf"scorers\.ir\.{said}"):
        imagereward(broken).score(batch())
