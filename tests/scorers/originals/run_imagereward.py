"""Run by the interpreter that has image-reward 1.5: its tokens, pixels and rewards of images.npy and prompts.json.

python run_imagereward.py CHECKPOINT MED_CONFIG
    in a folder with bert-base-uncased/, where the package's tokenizer is found by its name; writes scored.npz

The package's __init__ imports its training code and other scorers, with what these need; its modules of ImageReward are
imported past it, as they are.
"""

import importlib.util
import json
import sys
import types
from pathlib import Path

import numpy as np
import torch

# PyPI's torchvision is built for CUDA; beside a PyTorch for the CPU its operators are missing, and this module, which
# only describes them, fails to import. No operator is used here: pictures are resized by PIL.
sys.modules["torchvision._meta_registrations"] = types.ModuleType("torchvision._meta_registrations")

spec = importlib.util.find_spec("ImageReward")
for name, path in (("ImageReward", "."), ("ImageReward.models", "models")):
    package = types.ModuleType(name)
    package.__path__ = [str(Path(spec.origin).parent / path)]
    sys.modules[name] = package

from ImageReward.ImageReward import ImageReward  # noqa: E402
from PIL import Image  # noqa: E402


def main(checkpoint: str, med_config: str) -> None:
    prompts = json.loads(Path("prompts.json").read_text(encoding="utf-8"))
    pictures = [Image.fromarray(image) for image in np.load("images.npy")]
    model = ImageReward(med_config=med_config, device="cpu")
    state = torch.load(checkpoint, map_location="cpu", weights_only=True)
    # strict=False is utils.load's, too; what does not fit is told to the test.
    told = model.load_state_dict(state, strict=False)
    model.eval()
    tokens = model.blip.tokenizer(prompts, padding="max_length", truncation=True, max_length=35, return_tensors="np")
    with torch.no_grad():
        rewards = [model.score(prompt, picture) for prompt, picture in zip(prompts, pictures, strict=True)]
        _, ranked = model.inference_rank(prompts[0], pictures)
    np.savez(
        "scored.npz",
        tokens=tokens["input_ids"],
        pixels=np.stack([model.preprocess(picture).numpy() for picture in pictures]),
        rewards=np.array(rewards),
        of_first_prompt=np.array(ranked),
        unfitting=np.array([*told.missing_keys, *told.unexpected_keys], dtype=str),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
