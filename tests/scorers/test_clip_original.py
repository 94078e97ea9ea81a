"""CLIP score against open_clip, in its own environment: a small random model, CLIP's whole vocabulary.

The paper's code scores with apple/DFN5B-CLIP-ViT-H-14-384 through open_clip; its open_clip_config.json is written here
with small numbers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from chunk_grpo.scorers.base import ScoreBatch
from chunk_grpo.scorers.hpsv2_model import name_in_file
from tests.scorers.checkpoints_clip import MEAN, STD, Sizes, make_clip
from tests.scorers.originals.environments import python_with, run_original
from tests.scorers.samples import PROMPTS, noise
from tests.scorers.test_clip import clip

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SIZE = 56
CLEANED = ["a “quoted” cat", "salt &amp; pepper", "cafÃ©"]
"""open_clip straightens quotes, resolves HTML's names and mends wrongly decoded text (ftfy); transformers does not."""


def as_open_clip(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights of a CLIPModel of transformers under open_clip's names, which takes no others."""
    found = {name_in_file(name): tensor for name, tensor in tensors.items() if not name.endswith("position_ids")}
    for name in tensors:
        if ".q_proj." in name:
            parts = [tensors[name.replace(".q_proj.", f".{part}_proj.")] for part in "qkv"]
            found[name_in_file(name)] = torch.cat(parts)
    return found | {name: found[name].T.contiguous() for name in ("visual.proj", "text_projection")}


@pytest.fixture(scope="module")
def python() -> Path:
    torch_version = torch.__version__.partition("+")[0]
    return python_with("open-clip", [f"torch=={torch_version}", "open_clip_torch==3.3.0"])


@pytest.fixture(scope="module")
def folder(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of transformers' with CLIP's vocabulary, and the same in open_clip's files below model/."""
    folder = tmp_path_factory.mktemp("open-clip")
    run_original(python, "run_clip.py", folder, "vocabulary")
    words = json.loads((folder / "vocabulary.json").read_text(encoding="utf-8"))
    vocabulary = (words["vocab"], [(left, right) for left, right in words["merges"]])
    make_clip(folder / "checkpoint", sizes=Sizes(image=SIZE), vocabulary=vocabulary)
    (folder / "model").mkdir()
    tensors = as_open_clip(load_file(folder / "checkpoint" / "model.safetensors"))
    torch.save(tensors, folder / "model" / "open_clip_pytorch_model.bin")
    return folder


def original(python: Path, folder: Path, batch: ScoreBatch, resize_mode: str) -> dict[str, np.ndarray[Any, Any]]:
    """open_clip's scores of a batch."""
    model = {
        "embed_dim": 24,
        "quick_gelu": True,
        "vision_cfg": {
            "image_size": SIZE,
            "layers": 2,
            "width": 48,
            "head_width": 24,
            "patch_size": 8,
            "mlp_ratio": 2.0,
        },
        "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2, "mlp_ratio": 2.0},
    }
    pictures = {"mean": MEAN, "std": STD, "interpolation": "bicubic", "resize_mode": resize_mode}
    config = {"model_cfg": model, "preprocess_cfg": pictures}
    (folder / "model" / "open_clip_config.json").write_text(json.dumps(config))
    (folder / "prompts.json").write_text(json.dumps(list(batch.prompts)))
    np.save(folder / "images.npy", batch.images)
    run_original(python, "run_clip.py", folder, "score")
    return dict(np.load(folder / "scored.npz"))


def batch(prompts: list[str], height: int, width: int) -> ScoreBatch:
    return noise(prompts, height, width, seed=3)


@pytest.mark.parametrize("mode", ["squash", "shortest"])
def test_tokens_pixels_and_cosines_are_open_clips(python, folder, mode):
    given = batch(PROMPTS, 90, 130)
    theirs = original(python, folder, given, mode)
    mine = clip(folder / "checkpoint", resize="squash" if mode == "squash" else "processor")
    values = mine.score(given).values
    assert np.ptp(theirs["cosines"]) > 0.1
    _, processor = mine.models
    ids, mask = processor.tokens(PROMPTS)
    assert ids.shape == (len(PROMPTS), 77)  # the long prompt's
    np.testing.assert_array_equal((ids * mask).numpy(), theirs["tokens"])
    pixels = processor.pixels(given.images).numpy()
    np.testing.assert_allclose(pixels, theirs["pixels"], atol=1e-6)
    np.testing.assert_allclose(values, theirs["cosines"], atol=1e-6)


def test_open_clip_cleans_texts_with_ftfy_and_ours_does_not(python, folder):
    """A difference that is kept: it takes another package (ftfy) and touches prompts with such signs alone."""
    given = batch(CLEANED, SIZE, SIZE)
    theirs, mine = original(python, folder, given, "squash"), clip(folder / "checkpoint", resize="squash")
    assert np.abs(mine.score(given).values - theirs["cosines"]).min() > 1e-3
    mended = ['a "quoted" cat', "salt & pepper", "café"]
    values = mine.score(ScoreBatch(given.images, mended, given.metadata, given.groups)).values
    np.testing.assert_allclose(values, theirs["cosines"], atol=1e-6)


def test_centre_crop_rounding_differs_by_one_pixel(python, folder):
    """A difference that is kept, of PickScore's own processor too: 59 - 56 = 3, whose half torchvision rounds to 2."""
    given = batch(PROMPTS, SIZE, SIZE + 3)
    theirs, mine = original(python, folder, given, "shortest"), clip(folder / "checkpoint")
    mine.score(given)
    _, processor = mine.models
    pixels = processor.pixels(given.images).numpy()
    assert np.abs(pixels - theirs["pixels"]).max() > 0.5
    np.testing.assert_allclose(pixels[..., 1:], theirs["pixels"][..., :-1], atol=1e-6)
