"""CLIP score and PickScore on small random checkpoints, against plain transformers and pixels by PIL."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import load_file
from transformers import CLIPModel, CLIPTokenizer

from chunk_grpo.config.scorer_settings import Weights
from chunk_grpo.config.scorers import ClipScorer, PickScoreScorer
from chunk_grpo.errors import DataError
from chunk_grpo.scorers.base import Pictures, ScoreBatch
from chunk_grpo.scorers.clip import ClipScore, PickScore
from chunk_grpo.scorers.clip_model import load_encoder, load_processor
from tests.scorers.checkpoints_clip import MEAN, STD, make_clip, small_vocabulary
from tests.scorers.samples import noise, reconfigure, weights

pytestmark = pytest.mark.usefixtures("models")

PROMPTS = ["the cat", "a red thing", "the cat", "x", "A THE red\tcat, [37]"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_clip(tmp_path_factory.mktemp("clip") / "tiny-clip")


def pickscore(folder: Path, **changes: Any) -> PickScore:
    settings: dict[str, Any] = {"model": weights(folder), "processor": weights(folder), "dtype": "float32"}
    settings |= {"kind": "pickscore", "splits": ("eval",), "batch_size": 16, "scale": "logit"} | changes
    return PickScore("pick", PickScoreScorer(**settings), "cpu")


def clip(folder: Path, **changes: Any) -> ClipScore:
    settings: dict[str, Any] = {"model": weights(folder), "processor": None, "resize": "processor"}
    settings |= {"kind": "clip", "splits": ("eval",), "batch_size": 16, "dtype": "float32", "scale": "cosine"}
    return ClipScore("likeness", ClipScorer(**settings | changes), "cpu")


def batch(height: int = 40, width: int = 56, prompts: list[str] = PROMPTS) -> ScoreBatch:
    return noise(prompts, height, width, seed=7)


def by_hand(image: Pictures, size: int = 32) -> NDArray[np.float64]:
    """[3, size, size]: shorter side to size, the middle of the longer, normalised."""
    height, width = image.shape[:2]
    scale = size / min(height, width)
    picture = Image.fromarray(image).resize((int(width * scale), int(height * scale)), Image.Resampling.BICUBIC)
    left, top = (picture.width - size) // 2, (picture.height - size) // 2
    return normalised(picture.crop((left, top, left + size, top + size)))


def squashed(image: Pictures, size: int = 32) -> NDArray[np.float64]:
    return normalised(Image.fromarray(image).resize((size, size), Image.Resampling.BICUBIC))


def normalised(picture: Image.Image) -> NDArray[np.float64]:
    pixels: NDArray[np.float64] = (np.asarray(picture) / 255 - MEAN) / STD
    return pixels.transpose(2, 0, 1)


def one_at_a_time(
    folder: Path, given: ScoreBatch, pixels: Callable[[Pictures], NDArray[np.float64]] = by_hand
) -> NDArray[np.float64]:
    """logits_per_image of transformers' CLIPModel, for one image and its prompt at a time."""
    model = CLIPModel.from_pretrained(folder).eval()
    tokenizer = CLIPTokenizer.from_pretrained(folder)
    logits = []
    for image, prompt in zip(given.images, given.prompts, strict=True):
        text = tokenizer([prompt], padding=True, truncation=True, max_length=77, return_tensors="pt")
        with torch.no_grad():
            output = model(pixel_values=torch.tensor(pixels(image)[None]).float(), **text)
        logits.append(output.logits_per_image.item())
    return np.array(logits)


def test_pickscore_is_the_published_use_one_image_at_a_time(folder):
    expected = one_at_a_time(folder, batch())
    assert np.ptp(expected) > 10
    np.testing.assert_allclose(pickscore(folder).score(batch()).values, expected, atol=5e-5)


def test_scales_by_hand(folder):
    """logit_scale is 4.6052 in the checkpoint: exp of it is 100.0030 to six digits."""
    cosine = pickscore(folder, scale="cosine").score(batch()).values
    assert (np.abs(cosine) <= 1).all()
    np.testing.assert_allclose(pickscore(folder, scale="logit").score(batch()).values / cosine, 100.0030, rtol=1e-6)
    of_26 = pickscore(folder, scale="logit/26").score(batch()).values
    np.testing.assert_allclose(of_26 / cosine, 100.0030 / 26, rtol=1e-6)
    np.testing.assert_array_equal(clip(folder).score(batch()).values, cosine)
    np.testing.assert_allclose(clip(folder, scale="logit").score(batch()).values / cosine, 100.0030, rtol=1e-6)


@pytest.mark.parametrize(("height", "width"), [(40, 56), (59, 33), (32, 32), (20, 100), (300, 300)])
def test_pixels_by_the_processor(folder, height, width):
    encoder = load_encoder("k", folder, "float32", "cpu")
    images = batch(height, width).images
    found = load_processor("k", folder, encoder).pixels(images)
    np.testing.assert_allclose(found, np.stack([by_hand(image) for image in images]), atol=1e-6)


@pytest.mark.parametrize(("height", "width"), [(40, 56), (59, 33)])
def test_squash_takes_the_whole_picture(folder, height, width):
    given = batch(height, width)
    expected = one_at_a_time(folder, given, squashed)
    found = clip(folder, resize="squash", scale="logit").score(given).values
    np.testing.assert_allclose(found, expected, atol=5e-5)
    assert np.abs(found - clip(folder, scale="logit").score(given).values).max() > 1


def test_squash_needs_no_processor_of_the_models_size(folder, tmp_path):
    other = make_clip(tmp_path / "other")
    reconfigure(other, "preprocessor_config.json", lambda c: c.update(size=24, crop_size=24, do_resize=False))
    found = clip(folder, processor=weights(other), resize="squash").score(batch()).values
    np.testing.assert_array_equal(found, clip(folder, resize="squash").score(batch()).values)


def test_tokens_by_hand(folder):
    """512 symbols, 6 merges, start 518, end 519: "the" is the merge 513, "cat" 515; lower case; 77 at most."""
    encoder = load_encoder("k", folder, "float32", "cpu")
    processor = load_processor("k", folder, encoder)
    ids, mask = processor.tokens(["The  CAT", "cat"])
    assert ids.tolist() == [[518, 513, 515, 519], [518, 515, 519, 519]]
    assert mask.tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]
    ids, mask = processor.tokens(["the " * 75, "the " * 76, "the"])
    assert ids.shape == (3, 77)
    assert ids[:2].tolist() == [[518, *[513] * 75, 519]] * 2
    assert mask.sum(1).tolist() == [77, 77, 3]


def test_a_prompt_is_read_once_for_all_its_images(folder):
    encoder, processor = pickscore(folder).models
    read: list[list[str]] = []

    def tokens(prompts: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
        read.append(prompts)
        return processor.tokens(prompts)

    encoder.cosines(processor.pixels(batch().images), PROMPTS, tokens)
    assert read == [["the cat", "a red thing", "x", "A THE red\tcat, [37]"]]


def test_bfloat16_keeps_the_scale(folder):
    """In bfloat16, logit_scale would become 4.59375 and the factor 98.86: 1.1 % less for every image."""
    full = pickscore(folder, scale="cosine").score(batch()).values
    half, logit = pickscore(folder, scale="cosine", dtype="bfloat16"), pickscore(folder, dtype="bfloat16")
    found = half.score(batch()).values
    assert 1e-5 < np.abs(found - full).max() < 0.03
    np.testing.assert_allclose(logit.score(batch()).values / found, 100.0030, rtol=1e-6)
    assert half.models[0].model.dtype == torch.bfloat16


def test_a_model_of_the_hub_is_named_by_its_id(folder):
    hub = Weights(checkpoint="openai/clip-vit-large-patch14", revision="abc")
    assert clip(folder, model=hub, processor=hub).name == "clip/openai/clip-vit-large-patch14"


def test_the_other_files_of_a_checkpoint_give_the_same_scores(folder, tmp_path):
    """pytorch_model.bin (DFN5B has no other), vocab.json and merges.txt, and the tokenizer's end in config.json."""
    other = make_clip(tmp_path / "other", eos_token_id=None)
    torch.save(load_file(other / "model.safetensors"), other / "pytorch_model.bin")
    (other / "model.safetensors").unlink()
    (other / "tokenizer.json").unlink()
    vocabulary, merges = small_vocabulary()
    (other / "vocab.json").write_text(json.dumps(vocabulary))
    (other / "merges.txt").write_text("\n".join(["#version: 0.2", *(" ".join(pair) for pair in merges)]) + "\n")
    clip(other).check()
    np.testing.assert_array_equal(clip(other).score(batch()).values, clip(folder).score(batch()).values)


def test_a_tokenizer_of_a_larger_model_is_refused(folder, tmp_path):
    vocabulary, merges = small_vocabulary()
    words = [word for word in vocabulary if not word.startswith("<|")]
    larger = {word: number for number, word in enumerate([*words, "dog</w>", "<|startoftext|>", "<|endoftext|>"])}
    other = make_clip(tmp_path / "other", vocabulary=(larger, merges))
    with pytest.raises(DataError, match=r"has 521 tokens .* the model has 520"):
        pickscore(folder, processor=weights(other)).score(batch())
