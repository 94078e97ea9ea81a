"""HPSv3 by its authors' package hpsv3 1.0.0, as the script of an executor (docs/scorers.md).

Runs in an interpreter of its own, without this package: hpsv3 needs an older transformers.
"""

import hashlib
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
from huggingface_hub import snapshot_download
from PIL import Image
from safetensors.torch import save_file

FILES = {"model": "HPSv3.safetensors", "backbone": "*.json"}


def find_files(settings: Mapping[str, Any]) -> dict[str, list[Path]]:
    """The files of model and backbone, in their local folders or downloaded into the hub's cache."""
    found = {}
    for field, pattern in FILES.items():
        name, revision = settings[field]["checkpoint"], settings[field]["revision"]
        if not Path(name).is_dir():
            name = snapshot_download(name, revision=revision, allow_patterns=pattern)
        found[field] = sorted(Path(name).glob(pattern))
        if not found[field]:
            raise worker_protocol.DataError(f"{field}: no file {pattern} in {name}")
    return found


def inferencer(settings: Mapping[str, Any], files: Mapping[str, list[Path]], device: str) -> Any:
    """The package's HPSv3RewardInferencer: its own configuration, with the backbone and dtype of a scorer's section."""
    text = Path(hpsv3.__file__).with_name("config").joinpath("HPSv3_7B.yaml").read_text(encoding="utf-8")
    config = yaml.safe_load(text) | {"bf16": settings["dtype"] == "bfloat16", "torch_dtype": settings["dtype"]}
    with tempfile.TemporaryDirectory() as folder:
        for file in files["backbone"]:
            Path(folder, file.name).symlink_to(file.resolve())
        # The package wants a file of weights for the backbone, and then replaces all of them.
        save_file({"none": torch.zeros(1)}, Path(folder, "model.safetensors"), metadata={"format": "pt"})
        path = Path(folder, "hpsv3.yaml")
        path.write_text(yaml.safe_dump(config | {"model_name_or_path": folder}), encoding="utf-8")
        weights = str(files["model"][0])
        return HPSv3RewardInferencer(config_path=str(path), checkpoint_path=weights, device=device)


def open_worker(start: worker_protocol.Start) -> worker_protocol.Worker:
    """Means, and logarithms of the standard deviations; the model is loaded with the first batch."""
    files = find_files(start.settings)
    device = start.device or ("cuda" if torch.cuda.is_available() else "cpu")
    load = cache(lambda: inferencer(start.settings, files, device))

    def score(batch: worker_protocol.Batch) -> worker_protocol.Answer:
        images = [Image.frombytes("RGB", (batch.width, batch.height), row.pixels) for row in batch.rows]
        with torch.no_grad():
            rewards = load().reward(image_paths=images, prompts=[row.prompt for row in batch.rows])
        return rewards[:, 0].double().cpu(), {"log_sigma": rewards[:, 1].double().cpu()}

    digest = hashlib.sha256()
    for file in (*files["model"], *files["backbone"]):
        with file.open("rb") as stream:
            while block := stream.read(2**24):
                digest.update(block)
    identity = worker_protocol.settings_hash("hpsv3", 1, {**start.measured, "files": digest.hexdigest()})
    packages = ("hpsv3", "transformers", "torch", "torchvision")
    return worker_protocol.Worker("hpsv3", 1, score, needs=("prompt",), spec_hash=identity, packages=packages)


if __name__ == "__main__":
    worker_protocol.serve(open_worker)
