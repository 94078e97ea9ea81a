"""Small random ImageReward checkpoints in the files of the hub's, and bert-base-uncased's tokenizer beside it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS += [chr(letter) for letter in range(ord("a"), ord("z") + 1)]
WORDS += [f"##{chr(letter)}" for letter in range(ord("a"), ord("z") + 1)]
WORDS += ["the", "red", "cat", "##s", ",", ".", "0", "1", "2", "[", "]"]
WORDS = list(dict.fromkeys(WORDS))


@dataclass(frozen=True)
class Sizes:
    """Sizes of a checkpoint. The image encoder's heads have 64 channels; the head's widths are fixed."""

    width: int = 64
    depth: int = 2
    patch: int = 16
    image: int = 48
    hidden: int = 32
    layers: int = 2
    heads: int = 2


FULL = Sizes(width=1024, depth=24, patch=16, image=224, hidden=768, layers=12, heads=12)
"""ImageReward.pt's."""


def make_imagereward(folder: Path, seed: int = 0, sizes: Sizes = Sizes()) -> Path:
    """Write ImageReward.pt and med_config.json, and the tokenizer's files into the folder bert-base-uncased beside."""
    folder.mkdir(parents=True, exist_ok=True)
    make_bert_tokenizer(folder / "bert-base-uncased")
    med = {
        "architectures": ["BertModel"],
        "attention_probs_dropout_prob": 0.1,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "hidden_size": sizes.hidden,
        "initializer_range": 0.02,
        "intermediate_size": 4 * sizes.hidden,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": 512,
        "model_type": "bert",
        "num_attention_heads": sizes.heads,
        "num_hidden_layers": sizes.layers,
        "pad_token_id": 0,
        "type_vocab_size": 2,
        "vocab_size": len(WORDS) + 2,
        "encoder_width": 768,
        "add_cross_attention": True,
    }
    (folder / "med_config.json").write_text(json.dumps(med, indent=2))
    torch.save(_weights(sizes, seed), folder / "ImageReward.pt")
    return folder


def make_bert_tokenizer(folder: Path) -> Path:
    """The files of google-bert/bert-base-uncased that a tokenizer needs, with a few words."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True, "model_max_length": 512}))
    return folder


def _weights(sizes: Sizes, seed: int) -> dict[str, torch.Tensor]:
    """Large enough that every part of the model moves the reward, except where the real ones are small.

    The embeddings of pictures are small as in trained vision transformers, so that layer norms' epsilon is seen.
    """
    generator = torch.Generator().manual_seed(seed)
    weights: dict[str, torch.Tensor] = {}
    for name, shape in _shapes(sizes).items():
        noise = torch.randn(shape, generator=generator)
        if name.endswith(("norm.weight", "norm1.weight", "norm2.weight", "LayerNorm.weight")):
            weights[name] = 1 + 0.2 * noise
        elif name.endswith(("cls_token", "pos_embed")):
            weights[name] = 0.02 * noise
        elif "patch_embed" in name:
            weights[name] = 0.02 * noise * noise[0].numel() ** -0.5
        elif "embeddings" in name:
            weights[name] = 0.5 * noise
        elif noise.ndim > 1:
            weights[name] = 1.5 * noise * noise[0].numel() ** -0.5
        else:
            weights[name] = 0.2 * noise
    weights["blip.text_encoder.embeddings.position_ids"] = torch.arange(512)[None]
    return weights


def _shapes(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """Names and shapes of image-reward 1.5's ImageReward().state_dict()."""
    shapes: dict[str, tuple[int, ...]] = {}

    def linear(name: str, inputs: int, outputs: int) -> None:
        shapes[f"{name}.weight"] = (outputs, inputs)
        shapes[f"{name}.bias"] = (outputs,)

    def norm(name: str, width: int) -> None:
        shapes[f"{name}.weight"] = shapes[f"{name}.bias"] = (width,)

    width, hidden = sizes.width, sizes.hidden
    image, text = "blip.visual_encoder", "blip.text_encoder"
    shapes[f"{image}.cls_token"] = (1, 1, width)
    shapes[f"{image}.pos_embed"] = (1, (sizes.image // sizes.patch) ** 2 + 1, width)
    shapes[f"{image}.patch_embed.proj.weight"] = (width, 3, sizes.patch, sizes.patch)
    shapes[f"{image}.patch_embed.proj.bias"] = (width,)
    for block in (f"{image}.blocks.{number}" for number in range(sizes.depth)):
        norm(f"{block}.norm1", width)
        linear(f"{block}.attn.qkv", width, 3 * width)
        linear(f"{block}.attn.proj", width, width)
        norm(f"{block}.norm2", width)
        linear(f"{block}.mlp.fc1", width, 4 * width)
        linear(f"{block}.mlp.fc2", 4 * width, width)
    norm(f"{image}.norm", width)
    shapes[f"{text}.embeddings.word_embeddings.weight"] = (len(WORDS) + 2, hidden)
    shapes[f"{text}.embeddings.position_embeddings.weight"] = (512, hidden)
    norm(f"{text}.embeddings.LayerNorm", hidden)
    for layer in (f"{text}.encoder.layer.{number}" for number in range(sizes.layers)):
        for attention, read in (("attention", hidden), ("crossattention", width)):
            linear(f"{layer}.{attention}.self.query", hidden, hidden)
            linear(f"{layer}.{attention}.self.key", read, hidden)
            linear(f"{layer}.{attention}.self.value", read, hidden)
            linear(f"{layer}.{attention}.output.dense", hidden, hidden)
            norm(f"{layer}.{attention}.output.LayerNorm", hidden)
        linear(f"{layer}.intermediate.dense", hidden, 4 * hidden)
        linear(f"{layer}.output.dense", 4 * hidden, hidden)
        norm(f"{layer}.output.LayerNorm", hidden)
    linear("blip.vision_proj", width, 256)
    linear("blip.text_proj", hidden, 256)
    inputs = hidden
    for number, outputs in ((0, 1024), (2, 128), (4, 64), (6, 16), (7, 1)):
        linear(f"mlp.layers.{number}", inputs, outputs)
        inputs = outputs
    return shapes
