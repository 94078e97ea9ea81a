"""A small random HPSv3 in the files of the real one: HPSv3.safetensors, and Qwen2-VL-7B-Instruct's small files.

By default two layers and widths of 32, random weights with standard deviations of 0.15 and more: with smaller ones
attention is nearly uniform and positions hardly move the score.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from chunk_grpo.scorers.hpsv3_prompt import CLOSING, INSTRUCTION, RATING

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Qwen2's pattern, by which text is divided before pairs are merged."""

SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
"""Special tokens of Qwen2-VL in the order of their ids."""

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if loop.first and message['role'] != 'system' %}"
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    "{% endif %}"
    "<|im_start|>{{ message['role'] }}\n"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}"
    "<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Chat template of Qwen2-VL for one message with an image and a text."""

PADDED_VOCABULARY = 1024
"""Vocabulary size in config.json; larger than the tokenizer's, like the real one (152064 for 151657 tokens)."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of a checkpoint, alike for text and image encoder; the head always has its real widths."""

    width: int = 32
    """A multiple of 16 times `heads`."""
    layers: int = 2
    """Of each."""
    heads: int = 2
    """An even number; the text has half as many of keys and values."""


def make_hpsv3(folder: Path, seed: int = 0, sizes: Sizes = Sizes()) -> Path:
    """Write model/HPSv3.safetensors and backbone/ into a folder; returns the folder."""
    tokens = make_backbone(folder / "backbone", sizes)
    (folder / "model").mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    shapes = sorted(weight_shapes(tokens + 1, sizes).items())
    weights = {name: _random(rng, name, shape, sizes) for name, shape in shapes}
    save_file(weights, folder / "model" / "HPSv3.safetensors", metadata={"format": "pt"})
    return folder


def make_backbone(folder: Path, sizes: Sizes = Sizes()) -> int:
    """Write Qwen2-VL's configuration, tokenizer and image processor; no weights. Returns the number of tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    ids = {token: number for token in SPECIAL if (number := tokenizer.token_to_id(token)) is not None}
    _write(folder / "tokenizer_config.json", _tokenizer_config(ids))
    _write(folder / "config.json", _config(ids, sizes))
    _write(folder / "chat_template.json", {"chat_template": CHAT_TEMPLATE})
    _write(folder / "preprocessor_config.json", PREPROCESSOR)
    return int(tokenizer.get_vocab_size())


def weight_shapes(tokens: int, sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """Names and shapes as transformers 4.45.2 saves a Qwen2VLForConditionalGeneration with a head."""
    width, inner, half = sizes.width, 2 * sizes.width, sizes.width // 2
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (tokens, width),
        "model.norm.weight": (width,),
        "lm_head.weight": (tokens, width),
        "visual.patch_embed.proj.weight": (width, 3, 2, 14, 14),
        **_norm("visual.merger.ln_q", width),
        **_linear("visual.merger.mlp.0", 4 * width, 4 * width),
        **_linear("visual.merger.mlp.2", 4 * width, width),
        **_linear("rm_head.0", width, 1024),
        **_linear("rm_head.3", 1024, 16),
        **_linear("rm_head.5", 16, 2),
    }
    for layer in (f"model.layers.{number}" for number in range(sizes.layers)):
        shapes |= _linear(f"{layer}.self_attn.q_proj", width, width)
        shapes |= _linear(f"{layer}.self_attn.k_proj", width, half)
        shapes |= _linear(f"{layer}.self_attn.v_proj", width, half)
        shapes[f"{layer}.self_attn.o_proj.weight"] = (width, width)
        shapes[f"{layer}.mlp.gate_proj.weight"] = shapes[f"{layer}.mlp.up_proj.weight"] = (inner, width)
        shapes[f"{layer}.mlp.down_proj.weight"] = (width, inner)
        shapes[f"{layer}.input_layernorm.weight"] = (width,)
        shapes[f"{layer}.post_attention_layernorm.weight"] = (width,)
    for block in (f"visual.blocks.{number}" for number in range(sizes.layers)):
        shapes |= {**_norm(f"{block}.norm1", width), **_norm(f"{block}.norm2", width)}
        shapes |= _linear(f"{block}.attn.qkv", width, 3 * width)
        shapes |= _linear(f"{block}.attn.proj", width, width)
        shapes |= _linear(f"{block}.mlp.fc1", width, 4 * width)
        shapes |= _linear(f"{block}.mlp.fc2", 4 * width, width)
    return shapes


def _linear(name: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def _norm(name: str, width: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def _random(rng: np.random.Generator, name: str, shape: tuple[int, ...], sizes: Sizes) -> NDArray[np.float32]:
    """Normal; scales of norms around 1, matrices so that neither layers nor the head blow up."""
    values = rng.standard_normal(shape)
    is_scale = len(shape) == 1 and name.endswith("weight")
    spread = 0.15 if name.startswith(("rm_head.3", "visual.patch_embed")) else 0.25
    if len(shape) == 2 and shape[1] >= sizes.width:
        spread *= (Sizes().width / sizes.width) ** 0.5  # sums of more terms
    return ((1 + 0.25 * values) if is_scale else spread * values).astype(np.float32)


def _tokenizer() -> Tokenizer:
    """Byte-level pair encoding as in Qwen2, learnt from the instruction so that questions are about as long."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=900, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    tokenizer.train_from_iterator([INSTRUCTION, RATING, CLOSING, "a photo of a red circle"], trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return tokenizer


def _tokenizer_config(ids: dict[str, int]) -> dict[str, object]:
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    return {
        "add_prefix_space": False,
        "added_tokens_decoder": {str(number): {"content": token, **flags} for token, number in ids.items()},
        "additional_special_tokens": list(SPECIAL[1:]),
        "bos_token": None,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 32768,
        "pad_token": "<|endoftext|>",
        "padding_side": "left",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }


def _config(ids: dict[str, int], sizes: Sizes) -> dict[str, object]:
    """The flat layout of the published config.json."""
    eighth = sizes.width // sizes.heads // 8
    return {
        "architectures": ["Qwen2VLForConditionalGeneration"],
        "attention_dropout": 0.0,
        "bos_token_id": ids["<|endoftext|>"],
        "eos_token_id": ids["<|im_end|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "vision_token_id": ids["<|vision_pad|>"],
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "hidden_act": "silu",
        "hidden_size": sizes.width,
        "initializer_range": 0.02,
        "intermediate_size": 2 * sizes.width,
        "max_position_embeddings": 32768,
        "max_window_layers": sizes.layers,
        "model_type": "qwen2_vl",
        "num_attention_heads": sizes.heads,
        "num_hidden_layers": sizes.layers,
        "num_key_value_heads": sizes.heads // 2,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "sliding_window": 32768,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
        "vision_config": {
            "depth": sizes.layers,
            "embed_dim": sizes.width,
            "mlp_ratio": 4,
            "num_heads": sizes.heads,
            "in_chans": 3,
            "hidden_size": sizes.width,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "spatial_patch_size": 14,
            "temporal_patch_size": 2,
        },
        "rope_scaling": {"type": "mrope", "mrope_section": [eighth, 3 * eighth // 2, 3 * eighth // 2]},
        "vocab_size": PADDED_VOCABULARY,
    }


PREPROCESSOR: dict[str, object] = {
    "min_pixels": 3136,
    "max_pixels": 12845056,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "image_processor_type": "Qwen2VLImageProcessor",
    "processor_class": "Qwen2VLProcessor",
}
"""Settings of the published preprocessor."""


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2), encoding="utf-8")
