"""HPSv3 against the untouched package hpsv3 1.0.0 with transformers 4.45.2, on a small random checkpoint."""

import json
import logging
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from chunk_grpo.scorers import hpsv3_model
from chunk_grpo.scorers.running.placing import place_scorer
from chunk_grpo.scorers.workers import worker_protocol
from tests.scorers.checkpoints_hpsv3 import make_hpsv3
from tests.scorers.hpsv3_cases import CLOSE, GOLDEN, MORE, PROMPTS, pictures, scorer
from tests.scorers.originals.environments import python_with
from tests.scorers.samples import batch_of
from tests.scorers.servers import in_subprocess

LOG = logging.getLogger(__name__)
"""The differences, with --log-cli-level=INFO."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ORIGINALS = Path(__file__).parent / "originals"
PACKAGES = [
    "hpsv3==1.0.0",
    "matplotlib>=3.8",
    "tensorboard>=2.16",
    "torch==2.13.0",
    "torchvision==0.28.0",
    "transformers==4.45.2",
]
CASES = [(image, prompt) for image, prompt in zip(pictures(4), PROMPTS, strict=True)] + [
    (pictures(1, height, width, seed=number)[0], prompt) for number, (height, width, prompt) in enumerate(MORE)
]


@pytest.fixture(scope="module")
def python() -> Path:
    return python_with("hpsv3", PACKAGES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_hpsv3(tmp_path_factory.mktemp("hpsv3"))


def dump(folder: Path, python: Path, dtype: str) -> dict[str, NDArray[np.generic]]:
    job = {
        "settings": {name: {"checkpoint": str(folder / name), "revision": None} for name in ("model", "backbone")}
        | {"dtype": dtype},
        "images": str(folder / "images.npz"),
        "prompts": [prompt for _, prompt in CASES],
    }
    np.savez(folder / "images.npz", **{f"{number:03d}": image for number, (image, _) in enumerate(CASES)})
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
    scripts = [ORIGINALS / "with_torchvision.py", ORIGINALS / "dump_hpsv3.py"]
    environment = {**os.environ, "PYTHONPATH": str(Path(worker_protocol.__file__).parents[1])}
    command = [python, *scripts, folder / "job.json", folder / "out.npz"]
    subprocess.run(command, cwd=folder, env=environment, check=True)
    with np.load(folder / "out.npz") as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def in_float32(folder: Path, python: Path) -> dict[str, NDArray[np.generic]]:
    return dump(folder, python, "float32")


@pytest.fixture(scope="module")
def in_bfloat16(folder: Path, python: Path) -> dict[str, NDArray[np.generic]]:
    return dump(folder, python, "bfloat16")


def ours(folder: Path, dtype: str) -> NDArray[np.float64]:
    """Both numbers of every case, one image at a time, as sizes differ."""
    made = scorer(folder, dtype)
    scores = [made.score(batch_of(image[None], [prompt])) for image, prompt in CASES]
    made.close()
    return np.array([[each.values[0], each.details["log_sigma"][0]] for each in scores])


def test_pixels_and_token_ids_are_the_originals(folder: Path, in_float32: dict[str, NDArray[np.generic]]) -> None:
    made = scorer(folder)
    model = made.models
    inputs = [model.inputs(image[None], [prompt]) for image, prompt in CASES]
    made.close()
    for row, each in enumerate(inputs):
        length = each["input_ids"].shape[1]
        assert each["input_ids"][0].tolist() == in_float32["input_ids"][row, :length].tolist()
        assert in_float32["attention_mask"][row].tolist() == [1] * length + [0] * (
            in_float32["attention_mask"].shape[1] - length
        )
    grids = torch.cat([each["image_grid_thw"] for each in inputs])
    assert grids.tolist() == in_float32["image_grid_thw"].tolist()
    pixels = torch.cat([each["pixel_values"] for each in inputs]).numpy()
    difference = np.abs(pixels - in_float32["pixel_values"]).max()
    LOG.info(f"pixels differ by at most {difference:.2e}")
    assert difference < 1e-6


def test_the_score_in_float32_is_the_originals(folder: Path, in_float32: dict[str, NDArray[np.generic]]) -> None:
    numbers = ours(folder, "float32")
    for run in ("alone", "together"):
        difference = np.abs(numbers - in_float32[run]).max()
        LOG.info(f"{run}: differs by at most {difference:.2e}; the largest is {np.abs(in_float32[run]).max():.2f}")
        assert difference < 1e-5 * np.abs(in_float32[run]).max()
        assert numbers == pytest.approx(in_float32[run], **CLOSE)


def test_the_golden_values_are_the_originals(in_float32: dict[str, NDArray[np.generic]]) -> None:
    assert in_float32["alone"][:4] == pytest.approx(GOLDEN, **CLOSE)


def test_angles_in_bfloat16_are_the_originals(folder: Path, in_bfloat16: dict[str, NDArray[np.generic]]) -> None:
    """Bit for bit: frequencies of the text, cosines and sines of the first image's patches."""
    made = scorer(folder, "bfloat16")
    model = made.models
    image, prompt = CASES[0]
    grid = model.inputs(image[None], [prompt])["image_grid_thw"]
    made.close()
    backbone = model.network.backbone
    assert np.array_equal(backbone.language_model.rotary_emb.inv_freq.numpy(), in_bfloat16["text_frequencies"])
    seen = []
    handle = backbone.visual.rotary_pos_emb.register_forward_hook(lambda module, inputs, angles: seen.append(angles))
    with torch.inference_mode():
        backbone.visual(torch.zeros(int(grid.prod()), 1176, dtype=torch.bfloat16), grid_thw=grid)
    handle.remove()
    cos, sin = (part.float().numpy() for part in seen[0])
    half = cos.shape[1] // 2
    assert np.array_equal(cos[:, :half], in_bfloat16["vision_cos"])
    assert np.array_equal(sin[:, :half], in_bfloat16["vision_sin"])


def test_the_score_in_bfloat16_is_nearer_with_the_originals_angles(
    folder: Path, in_bfloat16: dict[str, NDArray[np.generic]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """bfloat16 has 8 bits, and sums in another order differ; but exact angles differ by more."""
    expected = in_bfloat16["alone"]
    rounded = np.abs(ours(folder, "bfloat16") - expected).mean()
    monkeypatch.setattr(hpsv3_model, "_round_angles", lambda backbone: None)
    exact = np.abs(ours(folder, "bfloat16") - expected).mean()
    LOG.info(f"bfloat16: {rounded:.4f} with rounded angles, {exact:.4f} with exact ones; spread {expected.std():.4f}")
    assert rounded < 0.05 * expected.std()
    assert rounded < 0.7 * exact


def test_original_package_can_run_as_worker(folder: Path, python: Path) -> None:
    """The subprocess worker returns the golden values for any batch size; its backbone has no weights."""
    in_process = scorer(folder)
    settings = in_process.settings.model_copy(update={"batch_size": 3})
    script, times = str(ORIGINALS / "hpsv3_worker.py"), {"start_seconds": 120.0, "timeout_seconds": 120.0}
    executor = in_subprocess(python=str(python), script=script, device="cpu", **times)
    placed = place_scorer("hpsv3", settings, executor)
    try:
        placed.check()
        assert (placed.name, placed.version) == (in_process.name, in_process.version)
        assert placed.spec_hash() != in_process.spec_hash()
        for rows in ([0, 1, 2, 3], [2]):
            images = np.stack([CASES[row][0] for row in rows])
            scores = placed.score(batch_of(images, [CASES[row][1] for row in rows]))
            assert scores.values == pytest.approx(GOLDEN[rows, 0], **CLOSE)
            assert scores.details["log_sigma"] == pytest.approx(GOLDEN[rows, 1], **CLOSE)
    finally:
        placed.close()
