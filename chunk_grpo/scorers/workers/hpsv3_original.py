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
"""The unmodified package hpsv3 as a worker. It needs a separate interpreter: it pins another transformers version.

In params.yaml, below `executors`, with the scorer's usual section below `scorers`:

    hpsv3: {kind: subprocess, python: hpsv3-env/bin/python, script: chunk_grpo/scorers/workers/hpsv3_original.py,
            device: null, start_seconds: 600.0, timeout_seconds: 600.0}

Model and backbone are folders, or the package's own hub ids, which it downloads in their newest revision.
hpsv3 1.0.0 imports matplotlib and tensorboard without listing them as dependencies.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lines  # type: ignore[import-not-found]  # beside this file
from PIL import Image

MODEL, WEIGHTS = "MizzenAI/HPSv3", "HPSv3.safetensors"
"""Hub id and file that the package downloads by default."""

BACKBONE = "Qwen/Qwen2-VL-7B-Instruct"
BACKBONE_FILES = (
    "chat_template.json",
    "config.json",
    "preprocessor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
)


class Original:
    """The package's HPSv3RewardInferencer, made at the first use."""

    def __init__(self, key: str, settings: Mapping[str, Any], device: str | None) -> None:
        """Find the files.

        Args:
            key: Name of the scorer in params.yaml, for messages.
            settings: The scorer's section; reads `model`, `backbone`, `dtype` and `batch_size`.
            device: Device such as cuda:0; on cpu the dtype must be float32.

        Raises:
            ConfigError: A revision is set for a model that the package downloads.
            DataError: A file is missing.
        """
        self._settings, self._device = settings, device
        self._weights = _find(f"scorers.{key}.model", settings["model"], MODEL, (WEIGHTS,))
        self._backbone = _find(f"scorers.{key}.backbone", settings["backbone"], BACKBONE, BACKBONE_FILES)
        self._inferencer: Any = None

    def digests(self) -> dict[str, str]:
        """File name to SHA-256 of each local file that is read. Paths do not count."""
        folders = ((self._weights, (WEIGHTS,)), (self._backbone, BACKBONE_FILES))
        return {
            name: _digest(folder / name) for folder, names in folders if folder is not None for name in names
        }

    def score(self, batch: Any) -> tuple[list[float], dict[str, list[float]]]:
        """Means, and logarithms of the standard deviations, scored `batch_size` images at a time."""
        import torch

        size = (batch.width, batch.height)
        numbers: list[list[float]] = []
        for first in range(0, len(batch.rows), self._settings["batch_size"]):
            rows = batch.rows[first : first + self._settings["batch_size"]]
            with torch.no_grad():
                # By keyword: hpsv3 1.0.1 swaps the order of the arguments.
                rewards = self.load().reward(
                    image_paths=[Image.frombytes("RGB", size, row.pixels) for row in rows],
                    prompts=[row.prompt for row in rows],
                )
            numbers += rewards.double().cpu().tolist()
        return [mean for mean, _ in numbers], {"log_sigma": [log_sigma for _, log_sigma in numbers]}

    def load(self) -> Any:
        """The HPSv3RewardInferencer, made at the first call."""
        if self._inferencer is None:
            import torch
            from hpsv3.inference import HPSv3RewardInferencer

            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                self._inferencer = HPSv3RewardInferencer(
                    config_path=str(self._config(folder)),
                    checkpoint_path=None if self._weights is None else str(self._weights / WEIGHTS),
                    device=self._device or ("cuda" if torch.cuda.is_available() else "cpu"),
                )
        return self._inferencer

    def _config(self, folder: Path) -> Path:
        """Write the package's configuration with this backbone path and dtype."""
        import hpsv3
        import yaml

        text = Path(hpsv3.__file__).with_name("config").joinpath("HPSv3_7B.yaml").read_text(encoding="utf-8")
        dtype = self._settings["dtype"]
        config = yaml.safe_load(text) | {"bf16": dtype == "bfloat16", "torch_dtype": dtype}
        backbone = BACKBONE if self._backbone is None else _with_weights(self._backbone, folder)
        config["model_name_or_path"] = str(backbone)
        path = folder / "config.yaml"
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        return path


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(2**24):
            digest.update(block)
    return digest.hexdigest()


def _with_weights(backbone: Path, folder: Path) -> Path:
    """The backbone, or a copy with a dummy weight file if it has none: the package requires one, then replaces it."""
    import torch
    from safetensors.torch import save_file

    if any(path.suffix in (".safetensors", ".bin") for path in backbone.iterdir()):
        return backbone
    copy = folder / "backbone"
    shutil.copytree(backbone, copy)
    save_file({"none": torch.zeros(1)}, copy / "model.safetensors", metadata={"format": "pt"})
    return copy


def _find(key: str, weights: Mapping[str, Any], hub_id: str, files: tuple[str, ...]) -> Path | None:
    """Folder with the files; None: the package downloads its default.

    Raises:
        ConfigError: A revision is set, which the package ignores.
        DataError: The folder does not exist, lacks a file, or the hub id is not the package's.
    """
    folder, how = Path(weights["checkpoint"]), f"`hf download {hub_id} {' '.join(files)} --local-dir FOLDER`"
    if not folder.is_dir():
        if weights["checkpoint"] != hub_id:
            raise lines.DataError(
                f"{key}.checkpoint: must be a folder with {', '.join(files)}, or {hub_id}, which the package hpsv3 "
                f"downloads, got {weights['checkpoint']!r}. Where there is a network: {how}."
            )
        if weights.get("revision") is not None:
            raise lines.ConfigError(
                f"{key}.revision: must be null, got {weights['revision']!r}: the package hpsv3 ignores it and "
                f"downloads the newest. Where there is a network: {how} with --revision; then give FOLDER."
            )
        return None
    missing = [name for name in files if not (folder / name).is_file()]
    if missing:
        raise lines.DataError(
            f"{key}: no file {', '.join(missing)} in {folder}. Where there is a network: {how}."
        )
    return folder


def open_worker(start: Any) -> Any:
    """Make the worker for a start line.

    Raises:
        ConfigError: A package is not installed, or a revision is set for a model that the package downloads.
        DataError: A file is missing.
    """
    missing = [
        name for name in ("hpsv3", "matplotlib", "tensorboard") if importlib.util.find_spec(name) is None
    ]
    if missing:
        needed = re.findall(r'^#     "(.+)",$', Path(__file__).read_text(encoding="utf-8"), re.M)
        raise lines.ConfigError(
            f"executors.{start.key}.python: {sys.executable} has no package {', '.join(missing)}; "
            f"`{shlex.join([sys.executable, '-m', 'pip', 'install', *needed])}`"
        )
    original = Original(start.key, start.settings, start.device)
    measured = {**start.measured, **lines.versions(("hpsv3",)), "files": original.digests()}
    return lines.Worker(
        "hpsv3",
        1,
        original.score,
        needs=("prompt",),
        spec_hash=lines.settings_hash("hpsv3", 1, measured),
        packages=("hpsv3", "transformers", "torch", "torchvision"),
    )


if __name__ == "__main__":
    lines.serve(open_worker)
