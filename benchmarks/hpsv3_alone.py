"""Score images one at a time with the unmodified package hpsv3; started by hpsv3_package.py in its own interpreter.

python hpsv3_alone.py JOB.json

JOB.json has settings (of the scorer, as in params.yaml), device, images (files) and prompts. The program prints one
line when model and images are loaded, and then, for each line of standard input, one line with scores and seconds per
image. The measured seconds therefore exclude loading and the communication between processes.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import hpsv3_original  # type: ignore[import-not-found]  # of chunk_grpo/scorers/workers, which is on PYTHONPATH
import torch
from PIL import Image


def main() -> None:
    """Load, report it, and score all images for each input line."""
    protocol = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries print to standard output
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    original = hpsv3_original.Original("hpsv3", job["settings"], job["device"]).load()
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
