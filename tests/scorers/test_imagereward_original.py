"""ImageReward against the package image-reward 1.5, untouched, in its own environment with an old transformers.

Its class is hard-wired to ViT-L/16 at 224 pixels and 12 layers of text, so the random checkpoint is of full size: 447
million weights (but the tokenizer's few words), 1.7 GB, written below pytest's temporary folder and removed at the end.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from chunk_grpo.scorers.imagereward import to_pixels, tokenize
from tests.scorers.checkpoints_imagereward import FULL, make_imagereward
from tests.scorers.originals.environments import python_with, run_original
from tests.scorers.samples import batch_of
from tests.scorers.test_imagereward import imagereward

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

PROMPTS = ["the red cats, 2 of them.", "A Café [DEC] é [ENC]", "x " * 50]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("imagereward")
    make_imagereward(folder, sizes=FULL)
    yield folder
    shutil.rmtree(folder)


def test_tokens_pixels_and_rewards_are_the_packages(folder):
    torch_version = torch.__version__.partition("+")[0]
    python = python_with(
        "imagereward",
        [f"torch=={torch_version}", "torchvision", "transformers==4.45.2", "timm==0.6.13", "fairscale==0.4.13"],
        alone=["image-reward==1.5"],
    )
    images = np.random.default_rng(2).integers(0, 256, (3, 259, 256, 3), dtype=np.uint8)
    np.save(folder / "images.npy", images)
    (folder / "prompts.json").write_text(json.dumps(PROMPTS))
    run_original(python, "run_imagereward.py", folder, "ImageReward.pt", "med_config.json")
    theirs = dict(np.load(folder / "scored.npz"))
    assert theirs["unfitting"].tolist() == []

    scorer = imagereward(folder)
    rewards = scorer.score(batch_of(images, PROMPTS)).values
    _, tokenizer = scorer.models
    np.testing.assert_array_equal(tokenize(tokenizer, PROMPTS)["input_ids"], theirs["tokens"])
    np.testing.assert_allclose(to_pixels(images, 224), theirs["pixels"], atol=1e-6)
    first = scorer.score(batch_of(images, PROMPTS[:1] * 3)).values
    assert min(np.ptp(theirs["rewards"]), np.ptp(theirs["of_first_prompt"])) > 0.01
    np.testing.assert_allclose(rewards, theirs["rewards"], atol=1e-5)
    np.testing.assert_allclose(first, theirs["of_first_prompt"], atol=1e-5)
