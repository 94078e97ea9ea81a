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

from chunk_grpo.config.scorers import ClipScorer
from chunk_grpo.scorers.base import ScoreBatch
from chunk_grpo.scorers.clip import ClipScore
from tests.scorers.checkpoints_clip import MEAN, STD, Sizes, make_clip
from tests.scorers.originals.environments import python_with, run_original
from tests.scorers.samples import PROMPTS, noise, weights

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SIZE = 56
CLEANED = ["a “quoted” cat", "salt &amp; pepper", "cafÃ©"]
"""open_clip straightens quotes, resolves HTML's names and mends wrongly decoded text (ftfy); transformers does not."""

LAYER = {
    "layer_norm1": "ln_1",
    "self_attn.out_proj": "attn.out_proj",
    "layer_norm2": "ln_2",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
}
REST = {
    "vision_model.embeddings.class_embedding": "visual.class_embedding",
    "vision_model.embeddings.position_embedding.weight": "visual.positional_embedding",
    "vision_model.embeddings.patch_embedding.weight": "visual.conv1.weight",
    "vision_model.pre_layrnorm": "visual.ln_pre",
    "vision_model.post_layernorm": "visual.ln_post",
    "text_model.embeddings.token_embedding.weight": "token_embedding.weight",
    "text_model.embeddings.position_embedding.weight": "positional_embedding",
    "text_model.final_layer_norm": "ln_final",
    "logit_scale": "logit_scale",
}


def as_open_clip(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights of a CLIPModel of transformers under open_clip's names."""
    found: dict[str, torch.Tensor] = {
        "visual.proj": tensors["visual_projection.weight"].T.contiguous(),
        "text_projection": tensors["text_projection.weight"].T.contiguous(),
    }
    for mine, theirs in REST.items():
        for end in ("", ".weight", ".bias"):
            if mine + end in tensors:
                found[theirs + end] = tensors[mine + end]
    for tower, prefix in (("vision_model", "visual."), ("text_model", "")):
        for layer in range(2):
            mine, theirs = f"{tower}.encoder.layers.{layer}.", f"{prefix}transformer.resblocks.{layer}."
            for end in ("weight", "bias"):
                parts = [tensors[f"{mine}self_attn.{part}_proj.{end}"] for part in "qkv"]
                found[f"{theirs}attn.in_proj_{end}"] = torch.cat(parts)
                for name, other in LAYER.items():
                    found[f"{theirs}{other}.{end}"] = tensors[f"{mine}{name}.{end}"]
    return found


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


def original(
    python: Path, folder: Path, batch: ScoreBatch, resize_mode: str
) -> dict[str, np.ndarray[Any, Any]]:
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
        "text_cfg": {
            "context_length": 77,
            "vocab_size": 49408,
            "width": 32,
            "heads": 2,
            "layers": 2,
            "mlp_ratio": 2.0,
        },
    }
    pictures = {"mean": MEAN, "std": STD, "interpolation": "bicubic", "resize_mode": resize_mode}
    config = {"model_cfg": model, "preprocess_cfg": pictures}
    (folder / "model" / "open_clip_config.json").write_text(json.dumps(config))
    (folder / "prompts.json").write_text(json.dumps(list(batch.prompts)))
    np.save(folder / "images.npy", batch.images)
    run_original(python, "run_clip.py", folder, "score")
    return dict(np.load(folder / "scored.npz"))


def scorer(folder: Path, resize: str) -> ClipScore:
    model = weights(folder / "checkpoint")
    settings: dict[str, Any] = {"model": model, "processor": None, "resize": resize, "dtype": "float32"}
    settings |= {"kind": "clip", "splits": ("eval",), "batch_size": 4, "scale": "cosine"}
    return ClipScore("likeness", ClipScorer(**settings), "cpu")


def batch(prompts: list[str], height: int, width: int) -> ScoreBatch:
    return noise(prompts, height, width, seed=3)


@pytest.mark.parametrize("mode", ["squash", "shortest"])
def test_tokens_pixels_and_cosines_are_open_clips(python, folder, mode):
    given = batch(PROMPTS, 90, 130)
    theirs = original(python, folder, given, mode)
    mine = scorer(folder, "squash" if mode == "squash" else "processor")
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
    theirs, mine = original(python, folder, given, "squash"), scorer(folder, "squash")
    assert np.abs(mine.score(given).values - theirs["cosines"]).min() > 1e-3
    mended = ['a "quoted" cat', "salt & pepper", "café"]
    values = mine.score(ScoreBatch(given.images, mended, given.metadata, given.groups)).values
    np.testing.assert_allclose(values, theirs["cosines"], atol=1e-6)


def test_centre_crop_rounding_differs_by_one_pixel(python, folder):
    """A difference that is kept, of PickScore's own processor too: 59 - 56 = 3, whose half torchvision rounds to 2."""
    given = batch(PROMPTS, SIZE, SIZE + 3)
    theirs, mine = original(python, folder, given, "shortest"), scorer(folder, "processor")
    mine.score(given)
    _, processor = mine.models
    pixels = processor.pixels(given.images).numpy()
    assert np.abs(pixels - theirs["pixels"]).max() > 0.5
    np.testing.assert_allclose(pixels[..., 1:], theirs["pixels"][..., :-1], atol=1e-6)
