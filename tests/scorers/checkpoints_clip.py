"""Small random CLIP checkpoints in the files of the hub's: config, weights, tokenizer and image processor."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers.pre_tokenizers import ByteLevel
from transformers import CLIPConfig, CLIPModel, CLIPTokenizer

MEAN = [0.48145466, 0.4578275, 0.40821073]
STD = [0.26862954, 0.26130258, 0.27577711]

MERGES = [("t", "h"), ("th", "e</w>"), ("c", "a"), ("ca", "t</w>"), ("r", "e"), ("re", "d</w>")]


@dataclass(frozen=True)
class Sizes:
    """Sizes of a checkpoint; the image encoder is 1.5 times as wide as the text encoder."""

    width: int = 32
    layers: int = 2
    heads: int = 2
    patch: int = 8
    image: int = 32


def small_vocabulary() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Bytes, bytes that end a word, a few merges, start and end: built as CLIP's is, with 6 merges for its 48,894."""
    letters = sorted(ByteLevel.alphabet())
    words = [*letters, *(f"{letter}</w>" for letter in letters), *("".join(pair) for pair in MERGES)]
    words += ["<|startoftext|>", "<|endoftext|>"]
    return {word: number for number, word in enumerate(words)}, MERGES


def make_clip(
    folder: Path,
    seed: int = 0,
    *,
    sizes: Sizes = Sizes(),
    vocabulary: tuple[Mapping[str, int], Sequence[tuple[str, str]]] | None = None,
    eos_token_id: int | None = 2,
) -> Path:
    """Write a CLIPModel with its processor, as in yuvalkirstain/PickScore_v1 and laion/CLIP-ViT-H-14-laion2B-s32B-b79K.

    `vocabulary` is the tokenizer's, with its merges; None: `small_vocabulary`. `eos_token_id` is config.json's: 2 in
    those of before transformers 4.31, whatever the tokenizer's; None: the tokenizer's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    vocab, merges = vocabulary or small_vocabulary()
    end = vocab["<|endoftext|>"]
    width, wide = sizes.width, 3 * sizes.width // 2
    layers = {"num_hidden_layers": sizes.layers, "num_attention_heads": sizes.heads, "hidden_act": "quick_gelu"}
    config = CLIPConfig(
        text_config={
            **layers,
            "hidden_size": width,
            "intermediate_size": 2 * width,
            "vocab_size": len(vocab),
            "max_position_embeddings": 77,
            "bos_token_id": vocab["<|startoftext|>"],
            "eos_token_id": end if eos_token_id is None else eos_token_id,
            "pad_token_id": end,
        },
        vision_config={
            **layers,
            "hidden_size": wide,
            "intermediate_size": 2 * wide,
            "image_size": sizes.image,
            "patch_size": sizes.patch,
        },
        projection_dim=3 * width // 4,
    )
    config.architectures = ["CLIPModel"]
    config.save_pretrained(folder)
    save_file(_weights(CLIPModel(config), seed), folder / "model.safetensors", {"format": "pt"})
    CLIPTokenizer(vocab=dict(vocab), merges=list(merges)).save_pretrained(folder)
    preprocessing = {
        "crop_size": sizes.image,
        "do_center_crop": True,
        "do_normalize": True,
        "do_resize": True,
        "feature_extractor_type": "CLIPFeatureExtractor",
        "image_mean": MEAN,
        "image_std": STD,
        "resample": 3,
        "size": sizes.image,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(preprocessing, indent=2))
    return folder


def _weights(model: CLIPModel, seed: int) -> dict[str, torch.Tensor]:
    """Large enough that every part of the model moves the result; with the position numbers that older files hold."""
    generator = torch.Generator().manual_seed(seed)
    weights: dict[str, torch.Tensor] = {}
    for name, value in model.state_dict().items():
        noise = torch.randn(value.shape, generator=generator)
        if name == "logit_scale":
            weights[name] = torch.tensor(4.6052)  # PickScore's: exp of it is 100
        elif name.endswith("embedding.weight") and value.ndim == 2:
            weights[name] = 0.5 * noise
        elif value.ndim > 1:
            weights[name] = noise * value[0].numel() ** -0.5
        elif "norm" in name and name.endswith("weight"):
            weights[name] = 1 + 0.2 * noise
        else:
            weights[name] = 0.2 * noise
    positions = model.config.text_config.max_position_embeddings
    weights["text_model.embeddings.position_ids"] = torch.arange(positions)[None]
    patches = (model.config.vision_config.image_size // model.config.vision_config.patch_size) ** 2
    weights["vision_model.embeddings.position_ids"] = torch.arange(patches + 1)[None]
    return weights
