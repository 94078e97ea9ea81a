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
"""Scores by the untouched package hpsv3, in an interpreter of its own: it pins another transformers.

Reads one JSON object a line from standard input and answers each with a line on standard output, after a first one
that names the versions:

    {"ready": {"hpsv3": "1.0.0", ...}}
    {"id": 1, "images": ["<base64 of a PNG>", ...], "prompts": ["a cat", ...]}
    {"id": 1, "values": [9.8, ...], "details": {"log_sigma": [-0.4, ...]}}

Whatever libraries print goes to standard error. A request that fails ends the worker with its traceback there.
matplotlib and tensorboard are imported by hpsv3 1.0.0 but not named among its dependencies.
"""

from __future__ import annotations

import argparse
import base64
import importlib.metadata
import io
import json
import os
import sys
from typing import Any

from PIL import Image


class Original:
    """The package's HPSv3RewardInferencer."""

    def __init__(self, checkpoint: str | None, config: str | None, device: str) -> None:
        """Load the model.

        Args:
            checkpoint: HPSv3.safetensors; None: the package downloads it.
            config: YAML like the package's hpsv3/config/HPSv3_7B.yaml, which None stands for. Its model_name_or_path
                names the backbone, of which this package also reads the weights, and replaces them.
            device: Such as cuda:0, or cpu, where the configuration must have bf16: false.
        """
        from hpsv3.inference import (  # type: ignore[import-not-found]  # in the worker's own interpreter
            HPSv3RewardInferencer,
        )

        self.inferencer = HPSv3RewardInferencer(config_path=config, checkpoint_path=checkpoint, device=device)

    def numbers(self, images: list[Image.Image], prompts: list[str]) -> list[list[float]]:
        """Mean and logarithm of the standard deviation, for each image."""
        import torch

        with torch.no_grad():
            # By keyword: hpsv3 1.0.1 swaps the order of the arguments.
            rewards = self.inferencer.reward(image_paths=images, prompts=prompts)
        answer: list[list[float]] = rewards.double().cpu().tolist()
        return answer

    def score(self, images: list[Image.Image], prompts: list[str]) -> list[float]:
        """The means, which are the scores."""
        return [mean for mean, _ in self.numbers(images, prompts)]


def answer(original: Original, request: dict[str, Any]) -> dict[str, Any]:
    """The reply to one line."""
    images = [Image.open(io.BytesIO(base64.b64decode(image))).convert("RGB") for image in request["images"]]
    numbers = original.numbers(images, request["prompts"])
    return {
        "id": request["id"],
        "values": [mean for mean, _ in numbers],
        "details": {"log_sigma": [log_sigma for _, log_sigma in numbers]},
    }


def main() -> None:
    """Load, say so, and answer until standard input ends."""
    protocol = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # before libraries that print are imported
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--checkpoint", help="HPSv3.safetensors; the package downloads it if there is none")
    parser.add_argument("--config", help="YAML like the package's HPSv3_7B.yaml, which is the default")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    original = Original(options.checkpoint, options.config, options.device)
    packages = ("hpsv3", "transformers", "torch", "torchvision")
    _send(protocol, {"ready": {name: importlib.metadata.version(name) for name in packages}})
    for line in sys.stdin:
        _send(protocol, answer(original, json.loads(line)))


def _send(protocol: Any, message: dict[str, Any]) -> None:
    protocol.write(json.dumps(message) + "\n")
    protocol.flush()


if __name__ == "__main__":
    main()
