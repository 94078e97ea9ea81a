"""HPSv2.1 against the package hpsv2 1.2.0, in its own environment: a small random model, CLIP's whole vocabulary."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from chunk_grpo.scorers.clip_model import tokenize
from chunk_grpo.scorers.hpsv2 import to_pixels
from tests.scorers.checkpoints_clip import make_clip
from tests.scorers.checkpoints_hpsv2 import IMAGE, JOINT, LAYERS, PATCH, TEXT, WIDE, make_hpsv2
from tests.scorers.originals.environments import python_with, run_original
from tests.scorers.samples import PROMPTS, batch_of
from tests.scorers.test_hpsv2 import hpsv2

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

CLIP_WORDS = 49408
SIDES = [(64, 64), (48, 80), (97, 33), (40, 25), (1024, 1024), (20, 20)]
"""Without 32x20: the package does not pad a picture whose longer side has its size already, and fails."""


@pytest.mark.usefixtures("models")
def test_tokens_pixels_and_scores_are_the_packages(tmp_path: Path) -> None:
    torch_version = torch.__version__.partition("+")[0]
    python = python_with(
        "hpsv2", [f"torch=={torch_version}", "torchvision", "open_clip_torch==3.3.0"], alone=["hpsv2==1.2.0"]
    )
    run_original(python, "run_clip.py", tmp_path, "vocabulary")
    words = json.loads((tmp_path / "vocabulary.json").read_text(encoding="utf-8"))
    make_clip(tmp_path / "clip", vocabulary=(words["vocab"], [tuple(pair) for pair in words["merges"]]))
    make_hpsv2(tmp_path / "model", vocabulary=CLIP_WORDS)
    sizes = {
        "embed_dim": JOINT,
        "vision_cfg": {"image_size": IMAGE, "layers": LAYERS, "width": WIDE, "head_width": 80, "patch_size": PATCH},
        "text_cfg": {
            "context_length": 77,
            "vocab_size": CLIP_WORDS,
            "width": TEXT,
            "heads": TEXT // 64,
            "layers": LAYERS,
        },
    }
    (tmp_path / "tiny.json").write_text(json.dumps(sizes))
    (tmp_path / "prompts.json").write_text(json.dumps(PROMPTS))
    rng = np.random.default_rng(0)
    pictures = [rng.integers(0, 256, (*sides, 3), np.uint8) for sides in SIDES]
    np.savez(tmp_path / "cases.npz", *pictures)
    run_original(python, "run_hpsv2.py", tmp_path)
    theirs = dict(np.load(tmp_path / "scored.npz"))

    scorer = hpsv2(tmp_path)
    ours = [
        scorer.score(batch_of(picture[None], [prompt])).values[0]
        for picture, prompt in zip(pictures, PROMPTS, strict=True)
    ]
    _, tokenizer = scorer.models
    ids, mask = tokenize(tokenizer, PROMPTS, 77)  # 77 of the long prompt
    tokens = (ids * mask).numpy()  # open_clip's have zeros after the end
    pixels = torch.cat([to_pixels(picture[None], IMAGE) for picture in pictures]).numpy()
    np.testing.assert_array_equal(tokens, theirs["tokens"])
    np.testing.assert_allclose(pixels, theirs["pixels"], atol=1e-5)
    assert np.ptp(theirs["scores"]) > 0.1
    np.testing.assert_allclose(ours, theirs["scores"], atol=2e-6)
