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
"""The untouched package hpsv3 as a worker, in an interpreter of its own: it pins another transformers.

In params.yaml, below `executors`, with the scorer's usual section below `scorers`:

    hpsv3: {kind: subprocess, python: hpsv3-env/bin/python, script: chunk_grpo/scorers/workers/hpsv3_original.py,
            device: null, start_seconds: 600.0, timeout_seconds: 600.0}

The package downloads a model that is no local folder, without regard for its revision. It reads the backbone's weights
too, and replaces them. matplotlib and tensorboard are imported by hpsv3 1.0.0 but not named among its dependencies.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lines  # type: ignore[import-not-found]  # beside this file
from PIL import Image


class Original:
    """The package's HPSv3RewardInferencer, made at the first use."""

    def __init__(self, settings: Mapping[str, Any], device: str | None) -> None:
        """Keep what is needed to load.

        Args:
            settings: The scorer's section of params.yaml.
            device: Such as cuda:0, or cpu, where the dtype must be float32.
        """
        self._settings, self._device = settings, device
        self._inferencer: Any = None

    def score(self, batch: Any) -> tuple[list[float], dict[str, list[float]]]:
        """Means, and logarithms of the standard deviations, of as many images at a time as the settings say."""
        import torch

        size = (batch.width, batch.height)
        numbers: list[list[float]] = []
        for first in range(0, len(batch.rows), self._settings["batch_size"]):
            rows = batch.rows[first : first + self._settings["batch_size"]]
            with torch.no_grad():
                # By keyword: hpsv3 1.0.1 swaps the order of the arguments.
                rewards = self._load().reward(
                    image_paths=[Image.frombytes("RGB", size, row.pixels) for row in rows],
                    prompts=[row.prompt for row in rows],
                )
            numbers += rewards.double().cpu().tolist()
        return [mean for mean, _ in numbers], {"log_sigma": [log_sigma for _, log_sigma in numbers]}

    def _load(self) -> Any:
        if self._inferencer is None:
            import torch
            from hpsv3.inference import HPSv3RewardInferencer

            weights = Path(self._settings["model"]["checkpoint"], "HPSv3.safetensors")
            with tempfile.TemporaryDirectory() as folder:
                self._inferencer = HPSv3RewardInferencer(
                    config_path=str(self._config(Path(folder))),
                    checkpoint_path=str(weights) if weights.exists() else None,
                    device=self._device or ("cuda" if torch.cuda.is_available() else "cpu"),
                )
        return self._inferencer

    def _config(self, folder: Path) -> Path:
        """The package's own configuration, but for where the backbone is and the dtype."""
        import hpsv3
        import yaml

        text = Path(hpsv3.__file__).with_name("config").joinpath("HPSv3_7B.yaml").read_text(encoding="utf-8")
        dtype = self._settings["dtype"]
        config = yaml.safe_load(text) | {"bf16": dtype == "bfloat16", "torch_dtype": dtype}
        config["model_name_or_path"] = self._settings["backbone"]["checkpoint"]
        path = folder / "config.yaml"
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        return path


def open_worker(start: Any) -> Any:
    """The worker of a section of params.yaml."""
    packages = ("hpsv3", "transformers", "torch", "torchvision")
    original = Original(start.settings, start.device)
    return lines.Worker("hpsv3", 1, original.score, needs=("prompt",), packages=packages)


if __name__ == "__main__":
    lines.serve(open_worker)
