"""Run by the interpreter that has hpsv2 1.2.0: its tokens, pixels and scores of pictures and prompts.

python run_hpsv2.py
    reads cases.npz (a picture each), prompts.json, tiny.json (sizes as in the package's model_configs) and
    model/HPS_v2.1_compressed.pt; writes scored.npz: tokens, pixels and scores, computed by the package's `score`

The wheel lacks CLIP's vocabulary, which is taken from open_clip_torch. What it imports and does not use here is left
out: turtle, clint and requests.
"""

import importlib.util
import json
import shutil
import sys
import types
from pathlib import Path

import numpy as np
import torch

# PyPI's torchvision is built for CUDA; beside a PyTorch for the CPU its operators are missing, and this module, which
# only describes them, fails to import. No operator is used here: tensors are resized by PyTorch.
sys.modules["torchvision._meta_registrations"] = types.ModuleType("torchvision._meta_registrations")
for name, attribute in (("turtle", "forward"), ("clint", "textui"), ("clint.textui", "progress"), ("requests", "get")):
    sys.modules[name] = types.ModuleType(name)
    setattr(sys.modules[name], attribute, None)

WORDS = "bpe_simple_vocab_16e6.txt.gz"
theirs = Path(importlib.util.find_spec("hpsv2").origin).parent / "src" / "open_clip" / WORDS
if not theirs.exists():
    shutil.copy(Path(importlib.util.find_spec("open_clip").origin).parent / WORDS, theirs)

from hpsv2 import img_score  # noqa: E402
from hpsv2.src import open_clip  # noqa: E402
from PIL import Image  # noqa: E402


def main() -> None:
    prompts = json.loads(Path("prompts.json").read_text(encoding="utf-8"))
    cases = np.load("cases.npz")
    pictures = [Image.fromarray(cases[name]) for name in cases.files]
    open_clip.add_model_config("tiny.json")
    # As img_score.initialize_model, with other sizes and without weights to download.
    model, _, preprocess = open_clip.create_model_and_transforms(
        "tiny", None, precision="amp", device="cpu", light_augmentation=True, aug_cfg={}, output_dict=True
    )
    img_score.model_dict.update(model=model, preprocess_val=preprocess)
    weights = "model/HPS_v2.1_compressed.pt"
    scores = [img_score.score(picture, prompt, cp=weights)[0] for picture, prompt in zip(pictures, prompts)]  # noqa: B905
    np.savez(
        "scored.npz",
        tokens=open_clip.get_tokenizer("ViT-H-14")(prompts).numpy(),
        pixels=torch.stack([preprocess(picture) for picture in pictures]).numpy(),
        scores=np.array(scores),
    )


if __name__ == "__main__":
    main()
