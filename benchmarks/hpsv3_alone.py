"""The untouched package hpsv3, one image at a time: run by its own interpreter, started by hpsv3_package.py.

python hpsv3_alone.py JOB.json

The job names checkpoint, backbone, device, dtype, images (files) and prompts. Answers with a line when the model is
loaded and the images are read, and then each line of standard input with one line, of scores and of seconds an image.
So neither loading nor the way between the processes counts for the package.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import yaml
from PIL import Image
from safetensors.torch import save_file


def config_of(job: dict[str, Any], folder: Path) -> Path:
    """The package's own configuration, but for the backbone's place and the dtype."""
    backbone = Path(job["backbone"])
    if not list(backbone.glob("*.safetensors")):
        # The package wants a file of weights there, and replaces them; an unknown weight is none.
        copy = folder / "backbone-for-the-package"
        shutil.copytree(backbone, copy, dirs_exist_ok=True)
        save_file({"none": torch.zeros(1)}, copy / "model.safetensors", metadata={"format": "pt"})
        backbone = copy
    package = find_spec("hpsv3")
    if package is None or package.origin is None:
        raise SystemExit("this interpreter has no package hpsv3")
    config = yaml.safe_load((Path(package.origin).parent / "config" / "HPSv3_7B.yaml").read_text())
    config |= {"model_name_or_path": str(backbone), "torch_dtype": job["dtype"]}
    config["bf16"] = job["dtype"] == "bfloat16"
    path = folder / "package.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def main() -> None:
    """Load, say so, and score all images for each line."""
    protocol = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries print
    path = Path(sys.argv[1])
    job = json.loads(path.read_text(encoding="utf-8"))
    from hpsv3.inference import HPSv3RewardInferencer  # prints

    original = HPSv3RewardInferencer(
        config_path=str(config_of(job, path.parent)),
        checkpoint_path=job["checkpoint"],
        device=job["device"],
    )
    images = [Image.open(name).convert("RGB") for name in job["images"]]
    print(json.dumps({"ready": True}), file=protocol, flush=True)
    for _ in sys.stdin:
        values, seconds = [], []
        for image, prompt in zip(images, job["prompts"], strict=True):
            start = time.perf_counter()
            with torch.no_grad():
                numbers = original.reward(image_paths=[image], prompts=[prompt])
            values.append(numbers[0, 0].item())  # waits for a GPU
            seconds.append(time.perf_counter() - start)
        print(json.dumps({"values": values, "seconds": seconds}), file=protocol, flush=True)


if __name__ == "__main__":
    main()
