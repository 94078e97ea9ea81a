"""Run by the interpreter that has open_clip_torch: its vocabulary, or its tokens, pixels and cosines.

python run_clip.py vocabulary
    writes vocabulary.json: {"vocab": {word: number}, "merges": [[left, right], ...]}
python run_clip.py score
    reads images.npy, prompts.json and the model of the folder model/; writes scored.npz: tokens, pixels, cosines,
    computed as fastvideo/models/reward_model/clip_score.py of Tencent-Hunyuan/MixGRPO does
"""

import json
import sys
import types

import numpy as np
import torch

# PyPI's torchvision is built for CUDA; beside a PyTorch for the CPU its operators are missing, and this module, which
# only describes them, fails to import. No operator is used here: pictures are resized by PIL.
sys.modules["torchvision._meta_registrations"] = types.ModuleType("torchvision._meta_registrations")

import open_clip  # noqa: E402
from PIL import Image  # noqa: E402

NAMES = {"<start_of_text>": "<|startoftext|>", "<end_of_text>": "<|endoftext|>"}


def vocabulary() -> None:
    tokenizer = open_clip.get_tokenizer("ViT-H-14")
    vocab = {NAMES.get(word, word): number for word, number in tokenizer.encoder.items()}
    merges = sorted(tokenizer.bpe_ranks, key=tokenizer.bpe_ranks.get)
    with open("vocabulary.json", "w", encoding="utf-8") as stream:  # noqa: PTH123
        json.dump({"vocab": vocab, "merges": merges}, stream)


def score() -> None:
    with open("prompts.json", encoding="utf-8") as stream:  # noqa: PTH123
        prompts = json.load(stream)
    model, preprocess = open_clip.create_model_from_pretrained("local-dir:model")
    model.eval()
    tokenizer = open_clip.get_tokenizer("ViT-H-14")
    pixels = torch.stack([preprocess(Image.fromarray(image)) for image in np.load("images.npy")])
    tokens = tokenizer(prompts, context_length=model.context_length)
    cosines = []
    with torch.no_grad():
        for image, text in zip(pixels, tokens, strict=True):
            of_image = torch.nn.functional.normalize(model.encode_image(image[None]), dim=-1)
            of_text = torch.nn.functional.normalize(model.encode_text(text[None]), dim=-1)
            cosines.append((of_image @ of_text.T).item())
    np.savez("scored.npz", tokens=tokens.numpy(), pixels=pixels.numpy(), cosines=np.array(cosines))


if __name__ == "__main__":
    {"vocabulary": vocabulary, "score": score}[sys.argv[1]]()
