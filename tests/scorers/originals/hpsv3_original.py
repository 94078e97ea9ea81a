# /// script
# requires-python = ">=3.10,<3.13"
# dependencies = [
#     "hpsv3==1.0.0",
#     "matplotlib>=3.8",
#     "tensorboard>=2.16",
#     "torch==2.13.0",
#     "torchvision==0.28.0",
#     "transformers==4.45.2",
# ]
# ///
"""The untouched package hpsv3 as a worker script, for comparisons. It pins another transformers version.

hpsv3 1.0.0 imports matplotlib and tensorboard without listing them as dependencies.
"""

import shutil
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import hpsv3
import torch
import worker_protocol
import yaml
from hpsv3.inference import HPSv3RewardInferencer
from PIL import Image
from safetensors.torch import save_file


def inferencer(settings: Mapping[str, Any], device: str) -> Any:
    """The package's HPSv3RewardInferencer with the model, backbone and dtype of a scorer's section."""
    text = Path(hpsv3.__file__).with_name("config").joinpath("HPSv3_7B.yaml").read_text(encoding="utf-8")
    config = yaml.safe_load(text)
    config |= {"bf16": settings["dtype"] == "bfloat16", "torch_dtype": settings["dtype"]}
    with tempfile.TemporaryDirectory() as folder:
        config["model_name_or_path"] = str(
            with_weights(Path(settings["backbone"]["checkpoint"]), Path(folder))
        )
        path = Path(folder) / "config.yaml"
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        weights = str(Path(settings["model"]["checkpoint"]) / "HPSv3.safetensors")
        return HPSv3RewardInferencer(config_path=str(path), checkpoint_path=weights, device=device)


def with_weights(backbone: Path, folder: Path) -> Path:
    """The backbone, or a copy with a dummy weight file if it has none: the package requires one, then replaces it."""
    if any(path.suffix in (".safetensors", ".bin") for path in backbone.iterdir()):
        return backbone
    copy = folder / "backbone"
    shutil.copytree(backbone, copy)
    save_file({"none": torch.zeros(1)}, copy / "model.safetensors", metadata={"format": "pt"})
    return copy


def open_worker(start: worker_protocol.Start) -> worker_protocol.Worker:
    """Means, and logarithms of the standard deviations; the model is loaded with the first batch."""
    load = cache(lambda: inferencer(start.settings, start.device or "cpu"))

    def score(batch: worker_protocol.Batch) -> worker_protocol.Answer:
        images = [Image.frombytes("RGB", (batch.width, batch.height), row.pixels) for row in batch.rows]
        with torch.no_grad():
            # By keyword: hpsv3 1.0.1 swaps the order of the arguments.
            rewards = load().reward(image_paths=images, prompts=[row.prompt for row in batch.rows])
        return rewards[:, 0].double().cpu(), {"log_sigma": rewards[:, 1].double().cpu()}

    packages = ("hpsv3", "transformers", "torch", "torchvision")
    return worker_protocol.Worker("hpsv3", 1, score, needs=("prompt",), packages=packages)


if __name__ == "__main__":
    worker_protocol.serve(open_worker)
