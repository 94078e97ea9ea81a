"""CLIP score and PickScore on small random checkpoints, against plain transformers and pixels by PIL."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import CLIPModel, CLIPTokenizer

from chunk_grpo.config.scorers import ClipScorer, PickScoreScorer, Weights
from chunk_grpo.errors import DataError
from chunk_grpo.scorers.base import Pictures, ScoreBatch
from chunk_grpo.scorers.clip import ClipScore, PickScore
from chunk_grpo.scorers.clip_model import load_encoder, load_processor
from chunk_grpo.scorers.running.configured import SharedModels
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
    picture = Image.fromarray(image).resize(
        (int(width * scale), int(height * scale)), Image.Resampling.BICUBIC
    )
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


def test_pickscore_is_the_published_use_one_image_at_a_time(folder: Path) -> None:
    expected = one_at_a_time(folder, batch())
    assert np.ptp(expected) > 10
    np.testing.assert_allclose(pickscore(folder).score(batch()).values, expected, atol=5e-5)


def test_scales_by_hand(folder: Path) -> None:
    """logit_scale is 4.6052 in the checkpoint: exp of it is 100.0030 to six digits."""
    cosine = pickscore(folder, scale="cosine").score(batch()).values
    assert (np.abs(cosine) <= 1).all()
    np.testing.assert_allclose(
        pickscore(folder, scale="logit").score(batch()).values / cosine, 100.0030, rtol=1e-6
    )
    of_26 = pickscore(folder, scale="logit/26").score(batch()).values
    np.testing.assert_allclose(of_26 / cosine, 100.0030 / 26, rtol=1e-6)
    np.testing.assert_array_equal(clip(folder).score(batch()).values, cosine)
    np.testing.assert_allclose(
        clip(folder, scale="logit").score(batch()).values / cosine, 100.0030, rtol=1e-6
    )


def test_rows_are_the_diagonal_of_the_whole_batch(folder: Path) -> None:
    given = batch()
    model, tokenizer = CLIPModel.from_pretrained(folder).eval(), CLIPTokenizer.from_pretrained(folder)
    text = tokenizer(given.prompts, padding=True, truncation=True, max_length=77, return_tensors="pt")
    pixels = torch.tensor(np.stack([by_hand(image) for image in given.images])).float()
    with torch.no_grad():
        logits = model(pixel_values=pixels, **text).logits_per_image
    assert logits.shape == (5, 5)
    np.testing.assert_allclose(pickscore(folder).score(given).values, logits.diagonal().numpy(), atol=5e-5)


def test_a_score_depends_neither_on_the_other_rows_nor_on_their_order(folder: Path) -> None:
    given, scorer = batch(), pickscore(folder)
    together = scorer.score(given).values
    alone = np.concatenate([scorer.score(given.rows([row])).values for row in range(5)])
    np.testing.assert_allclose(together, alone, atol=5e-5)
    order = [3, 0, 4, 2, 1]
    np.testing.assert_allclose(scorer.score(given.rows(order)).values, together[order], atol=5e-5)
    small = pickscore(folder)
    small.settings = small.settings.model_copy(update={"batch_size": 2})
    np.testing.assert_allclose(small.score(given).values, together, atol=5e-5)


def test_an_empty_batch_has_no_scores(folder: Path) -> None:
    assert pickscore(folder).score(batch().rows([])).values.shape == (0,)


@pytest.mark.parametrize(("height", "width"), [(40, 56), (59, 33), (32, 32), (20, 100), (300, 300)])
def test_pixels_by_the_processor(folder: Path, height: int, width: int) -> None:
    encoder = load_encoder("k", weights(folder), "float32", "cpu")
    images = batch(height, width).images
    found = load_processor("k", weights(folder), encoder, "processor").pixels(images)
    np.testing.assert_allclose(found, np.stack([by_hand(image) for image in images]), atol=1e-6)


@pytest.mark.parametrize(("height", "width"), [(40, 56), (59, 33)])
def test_squash_takes_the_whole_picture(folder: Path, height: int, width: int) -> None:
    given = batch(height, width)
    expected = one_at_a_time(folder, given, squashed)
    found = clip(folder, resize="squash", scale="logit").score(given).values
    np.testing.assert_allclose(found, expected, atol=5e-5)
    assert np.abs(found - clip(folder, scale="logit").score(given).values).max() > 1


def test_squash_needs_no_processor_of_the_models_size(folder: Path, tmp_path: Path) -> None:
    other = make_clip(tmp_path / "other")
    reconfigure(other, "preprocessor_config.json", lambda c: c.update(size=24, crop_size=24, do_resize=False))
    found = clip(folder, processor=weights(other), resize="squash").score(batch()).values
    np.testing.assert_array_equal(found, clip(folder, resize="squash").score(batch()).values)


def test_square_pictures_are_resized_alike_both_ways(folder: Path) -> None:
    given = batch(48, 48)
    squash, processor = clip(folder, resize="squash"), clip(folder)
    np.testing.assert_array_equal(squash.score(given).values, processor.score(given).values)


def test_tokens_by_hand(folder: Path) -> None:
    """512 symbols, 6 merges, start 518, end 519: "the" is the merge 513, "cat" 515; lower case; 77 at most."""
    encoder = load_encoder("k", weights(folder), "float32", "cpu")
    processor = load_processor("k", weights(folder), encoder, "processor")
    ids, mask = processor.tokens(["The  CAT", "cat"])
    assert ids.tolist() == [[518, 513, 515, 519], [518, 515, 519, 519]]
    assert mask.tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]
    ids, mask = processor.tokens(["the " * 75, "the " * 76, "the"])
    assert ids.shape == (3, 77)
    assert ids[:2].tolist() == [[518, *[513] * 75, 519]] * 2
    assert mask.sum(1).tolist() == [77, 77, 3]


def test_a_prompt_is_read_once_for_all_its_images(folder: Path) -> None:
    scorer = pickscore(folder)
    scorer.score(batch())
    assert scorer._models is not None
    encoder, processor = scorer._models
    read: list[list[str]] = []

    class Recording(type(processor)):  # type: ignore[misc]
        def tokens(self, prompts: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
            read.append(prompts)
            return super().tokens(prompts)  # type: ignore[no-any-return]

    scorer._models = encoder, Recording(**vars(processor))
    scorer.score(batch())
    assert read == [["the cat", "a red thing", "x", "A THE red\tcat, [37]"]]


def test_bfloat16_keeps_the_scale(folder: Path) -> None:
    """In bfloat16, logit_scale would become 4.59375 and the factor 98.86: 1.1 % less, whatever the image."""
    full = pickscore(folder, scale="cosine").score(batch()).values
    half, logit = pickscore(folder, scale="cosine", dtype="bfloat16"), pickscore(folder, dtype="bfloat16")
    found = half.score(batch()).values
    assert 1e-5 < np.abs(found - full).max() < 0.03
    np.testing.assert_allclose(logit.score(batch()).values / found, 100.0030, rtol=1e-6)
    assert half._models is not None
    assert half._models[0].model.dtype == torch.bfloat16


def test_scorers_share_an_encoder_until_the_last_closes(folder: Path, models: SharedModels) -> None:
    first, second, other = pickscore(folder), clip(folder), clip(folder, dtype="bfloat16")
    assert not models.users()
    for scorer in (first, second, other):
        scorer.check()
    assert not models.users()
    for scorer in (first, second, other):
        scorer.score(batch())
        scorer.score(batch())
    assert sorted(models.users().values()) == [1, 2]
    assert first._models is not None
    assert second._models is not None
    assert first._models[0] is second._models[0]
    first.close()
    first.close()
    assert sorted(models.users().values()) == [1, 1]
    second.close()
    other.close()
    assert not models.users()


def test_names_say_the_model(folder: Path) -> None:
    assert pickscore(folder).name == "pickscore"
    assert clip(folder).name == "clip/tiny-clip"
    hub = Weights(checkpoint="openai/clip-vit-large-patch14", revision="abc")
    assert clip(folder, model=hub, processor=hub).name == "clip/openai/clip-vit-large-patch14"


def test_identity_follows_the_files_and_the_settings(folder: Path, tmp_path: Path) -> None:
    same, other = make_clip(tmp_path / "tiny-clip"), make_clip(tmp_path / "other" / "tiny-clip", seed=1)
    assert clip(same).spec_hash() == clip(folder).spec_hash()
    changed = [
        clip(other),
        clip(folder, resize="squash"),
        clip(folder, scale="logit"),
        clip(folder, dtype="bfloat16"),
    ]
    assert len({scorer.spec_hash() for scorer in [clip(folder), *changed]}) == 5


def test_the_other_files_of_a_checkpoint_give_the_same_scores(folder: Path, tmp_path: Path) -> None:
    """pytorch_model.bin (DFN5B has no other), vocab.json and merges.txt, and the tokenizer's end in config.json."""
    other = make_clip(tmp_path / "other", eos_token_id=None)
    torch.save(load_file(other / "model.safetensors"), other / "pytorch_model.bin")
    (other / "model.safetensors").unlink()
    (other / "tokenizer.json").unlink()
    vocabulary, merges = small_vocabulary()
    (other / "vocab.json").write_text(json.dumps(vocabulary))
    (other / "merges.txt").write_text(
        "\n".join(["#version: 0.2", *(" ".join(pair) for pair in merges)]) + "\n"
    )
    clip(other).check()
    np.testing.assert_array_equal(clip(other).score(batch()).values, clip(folder).score(batch()).values)


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


BROKEN: list[tuple[str, Callable[[Path], object], str]] = [
    (
        "missing weight",
        lambda f: rewrite(f, lambda t: t.pop("visual_projection.weight")),
        "scorers.pick.model: .*visual_projection.weight is missing",
    ),
    (
        "surplus weight",
        lambda f: rewrite(f, lambda t: t.update(head=torch.ones(2))),
        "scorers.pick.model: .*head is unknown to the model",
    ),
    (
        "another shape",
        lambda f: rewrite(f, lambda t: t.update({"text_projection.weight": torch.ones(3, 4)})),
        r"scorers.pick.model: .*text_projection.weight is \[3, 4\] in place of \[24, 32\]",
    ),
    (
        "another kind of model",
        lambda f: reconfigure(f, "config.json", lambda c: c.update(model_type="siglip")),
        "scorers.pick.model: .*must be a model of type clip, but .* is 'siglip'",
    ),
    (
        "half a file",
        lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:5000]),
        "scorers.pick.model: .* cannot be read as a CLIPModel",
    ),
    (
        "no JSON",
        lambda f: (f / "config.json").write_text("version https://git-lfs"),
        "scorers.pick.model: .*config.json cannot be read",
    ),
    (
        "half a tokenizer",
        lambda f: (f / "tokenizer.json").write_text("{}"),
        "scorers.pick.processor: .* holds no readable CLIP tokenizer and image processor",
    ),
    (
        "pictures of another size",
        lambda f: reconfigure(f, "preprocessor_config.json", lambda c: c.update(size=24, crop_size=24)),
        "scorers.pick.processor: .*makes images of 24x24 pixels, the model takes 32x32",
    ),
    (
        "another end of texts",
        lambda f: reconfigure(f, "config.json", lambda c: c["text_config"].update(eos_token_id=7)),
        "scorers.pick.processor: .*ends texts with number 519; .* needs 7",
    ),
]


@pytest.mark.parametrize(("spoil", "message"), [pytest.param(*case[1:], id=case[0]) for case in BROKEN])
def test_what_does_not_fit_is_refused(tmp_path: Path, spoil: Callable[[Path], object], message: str) -> None:
    broken = make_clip(tmp_path / "broken")
    spoil(broken)
    with pytest.raises(DataError, match=message):
        pickscore(broken).score(batch())


def test_a_tokenizer_of_a_larger_model_is_refused(folder: Path, tmp_path: Path) -> None:
    vocabulary, merges = small_vocabulary()
    words = [word for word in vocabulary if not word.startswith("<|")]
    larger = {
        word: number for number, word in enumerate([*words, "dog</w>", "<|startoftext|>", "<|endoftext|>"])
    }
    other = make_clip(tmp_path / "other", vocabulary=(larger, merges))
    with pytest.raises(DataError, match=r"has 521 tokens .* the model has 520"):
        pickscore(folder, processor=weights(other)).score(batch())


@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "tokenizer.json", "preprocessor_config.json"]
)
def test_check_names_the_missing_file(tmp_path: Path, name: str) -> None:
    broken = make_clip(tmp_path / "broken")
    (broken / name).unlink()
    for scorer in (clip(broken), pickscore(broken)):
        with pytest.raises(DataError, match=rf"scorers\.\w+\.(model|processor): no file .*{name}"):
            scorer.check()


def test_images_given_as_another_batch_change_only_their_own_row(folder: Path) -> None:
    given, scorer = batch(), pickscore(folder)
    before = scorer.score(given).values
    images = given.images.copy()
    images[3] = 255 - images[3]
    after = scorer.score(replace(given, images=images)).values
    assert np.abs(after - before)[3] > 1
    np.testing.assert_allclose(np.delete(after, 3), np.delete(before, 3), atol=5e-5)
