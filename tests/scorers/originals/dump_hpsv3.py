"""Intermediate values of the unmodified hpsv3: python dump_hpsv3.py JOB.json OUT.npz.

The job has the scorer's settings, images (an .npz) and prompts. Runs in the package's interpreter, with the folder of
hpsv3_package and worker_protocol on PYTHONPATH.
"""

import json
import sys
from pathlib import Path

import hpsv3_package
import numpy as np
import torch
from PIL import Image

job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
files = hpsv3_package.find_files(job["settings"])
original = hpsv3_package.inferencer(job["settings"], files, "cpu")
if original.model.model.embed_tokens.weight.dtype == torch.bfloat16:
    # On a GPU, autocast gives the head its input in float32; on a CPU the package's autocast does nothing.
    original.model.rm_head.register_forward_pre_hook(lambda module, inputs: (inputs[0].float(),))

out: dict[str, np.ndarray] = {}
with np.load(job["images"]) as arrays, torch.no_grad():
    images = [Image.fromarray(arrays[name]) for name in sorted(arrays)]
    batch = original.prepare_batch(image_paths=images, prompts=job["prompts"])
    out |= {name: value.numpy() for name, value in batch.items()}
    out["together"] = original.reward(image_paths=images, prompts=job["prompts"]).numpy()
    alone = [
        original.reward(image_paths=[image], prompts=[prompt])
        for image, prompt in zip(images, job["prompts"], strict=True)
    ]
    out["alone"] = torch.cat(alone).numpy()
    out["text_frequencies"] = original.model.model.rotary_emb.inv_freq.float().numpy()
    angles = original.model.visual.rot_pos_emb(batch["image_grid_thw"][:1])
    out["vision_cos"], out["vision_sin"] = angles.cos().float().numpy(), angles.sin().float().numpy()
np.savez(sys.argv[2], **out)
