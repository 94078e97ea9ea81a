"""HPSv2's network: transformers' CLIPModel, loaded from the authors' file of an open_clip ViT-H/14.

Source: package hpsv2 1.2.0, img_score.py and src/open_clip (model.py, transformer.py, model_configs/ViT-H-14.json).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from torch import Tensor
from transformers import CLIPConfig, CLIPModel

from chunk_grpo.config.scorer_settings import Dtype
from chunk_grpo.errors import DataError
from chunk_grpo.scorers.clip_model import ClipEncoder
from chunk_grpo.scorers.running.checkpoints import readable
from chunk_grpo.weights import check_shapes

MODEL_FILES = ("HPS_v2.1_compressed.pt",)
"""File of xswu/HPSv2."""

_IMAGE_HEAD = 80
_TEXT_HEAD = 64
"""Widths of the attention heads: ViT-H/14 has 16 heads for 1280 channels of the image and 16 for 1024 of the text."""

_NAMES_IN_FILE = (
    (r"^vision_model\.embeddings\.class_embedding$", "visual.class_embedding"),
    (r"^vision_model\.embeddings\.position_embedding\.weight$", "visual.positional_embedding"),
    (r"^vision_model\.embeddings\.patch_embedding\.", "visual.conv1."),
    (r"^vision_model\.pre_layrnorm\.", "visual.ln_pre."),
    (r"^vision_model\.post_layernorm\.", "visual.ln_post."),
    (r"^vision_model\.encoder\.layers\.", "visual.transformer.resblocks."),
    (r"^text_model\.embeddings\.token_embedding\.", "token_embedding."),
    (r"^text_model\.embeddings\.position_embedding\.weight$", "positional_embedding"),
    (r"^text_model\.final_layer_norm\.", "ln_final."),
    (r"^text_model\.encoder\.layers\.", "transformer.resblocks."),
    (r"\.layer_norm([12])\.", r".ln_\1."),
    (r"\.mlp\.fc1\.", ".mlp.c_fc."),
    (r"\.mlp\.fc2\.", ".mlp.c_proj."),
    (r"\.self_attn\.out_proj\.", ".attn.out_proj."),
    (r"\.self_attn\.[qkv]_proj\.(weight|bias)$", r".attn.in_proj_\1"),
    (r"^visual_projection\.weight$", "visual.proj"),
    (r"^text_projection\.weight$", "text_projection"),
)
"""Rules from transformers' weight names to open_clip's, which holds queries, keys and values in one tensor."""

_TRANSPOSED = ("visual.proj", "text_projection")
"""Weights that open_clip multiplies from the right."""


def load_model(key: str, folder: Path, dtype: Dtype, device: str) -> ClipEncoder:
    """Load HPS_v2.1_compressed.pt, with sizes read from its weights.

    DataError if the file is damaged, or names weights that are missing, surplus or of another shape.
    """
    path = folder / MODEL_FILES[0]
    with readable(f"{key}: {path} cannot be read"):
        tensors: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
    try:
        config = _config(tensors)
    except (KeyError, ValueError) as error:
        raise DataError(f"{key}: {path} holds no HPSv2 ({type(error).__name__}: {error}).") from error
    with init_empty_weights(include_buffers=False):
        model = CLIPModel(config)
    empty = model.state_dict()
    check_shapes(
        f"{key}: weights in {path}",
        {name_in_file(name): _shape_in_file(name, value.shape) for name, value in empty.items()},
        {name: value.shape for name, value in tensors.items()},
        (),
        "The file is of another model, or damaged. Fetch it again.",
    )
    model.load_state_dict({name: _taken(name, tensors).float() for name in empty}, assign=True)
    model.eval().requires_grad_(False)
    scale = float(model.logit_scale.double().exp())
    return ClipEncoder(model.to(device, getattr(torch, dtype)), scale)


def name_in_file(name: str) -> str:
    """open_clip's name of the tensor that holds a weight of transformers' CLIPModel."""
    for pattern, replacement in _NAMES_IN_FILE:
        name = re.sub(pattern, replacement, name)
    return name


def _part(name: str) -> int | None:
    """Position of a weight among queries, keys and values; None: it is none of them."""
    found = re.search(r"\.self_attn\.([qkv])_proj\.", name)
    return "qkv".index(found[1]) if found else None


def _shape_in_file(name: str, shape: Sequence[int]) -> tuple[int, ...]:
    if _part(name) is not None:
        return (3 * shape[0], *shape[1:])
    return tuple(reversed(shape)) if name_in_file(name) in _TRANSPOSED else tuple(shape)


def _taken(name: str, tensors: Mapping[str, Tensor]) -> Tensor:
    theirs = name_in_file(name)
    tensor, part = tensors[theirs], _part(name)
    if part is not None:
        return tensor.chunk(3)[part].clone()
    return tensor.T.contiguous() if theirs in _TRANSPOSED else tensor


def _config(tensors: Mapping[str, Tensor]) -> CLIPConfig:
    """Sizes of the model, from shapes of its weights. KeyError if one is missing, ValueError if they do not fit."""
    width, _, patch, _ = tensors["visual.conv1.weight"].shape
    patches = tensors["visual.positional_embedding"].shape[0] - 1
    side = math.isqrt(patches)
    length, text_width = tensors["positional_embedding"].shape
    if side * side != patches or width % _IMAGE_HEAD or text_width % _TEXT_HEAD:
        raise ValueError(
            f"needs a square number of patches and widths divisible by {_IMAGE_HEAD} (images) and {_TEXT_HEAD} (text), "
            f"got {patches}, {width} and {text_width}"
        )
    vocabulary = tensors["token_embedding.weight"].shape[0]
    common: dict[str, Any] = {"hidden_act": "gelu", "layer_norm_eps": 1e-5}
    return CLIPConfig(
        text_config={
            **common,
            "hidden_size": text_width,
            "intermediate_size": tensors["transformer.resblocks.0.mlp.c_fc.bias"].shape[0],
            "num_hidden_layers": _layers(tensors, "transformer."),
            "num_attention_heads": text_width // _TEXT_HEAD,
            "vocab_size": vocabulary,
            "max_position_embeddings": length,
            "eos_token_id": vocabulary - 1,  # open_clip reads a text at its highest token id
            "bos_token_id": None,
            "pad_token_id": None,
        },
        vision_config={
            **common,
            "hidden_size": width,
            "intermediate_size": tensors["visual.transformer.resblocks.0.mlp.c_fc.bias"].shape[0],
            "num_hidden_layers": _layers(tensors, "visual.transformer."),
            "num_attention_heads": width // _IMAGE_HEAD,
            "image_size": side * patch,
            "patch_size": patch,
        },
        projection_dim=tensors["text_projection"].shape[1],
    )


def _layers(tensors: Mapping[str, Tensor], prefix: str) -> int:
    return len({name.removeprefix(prefix).split(".")[1] for name in tensors if name.startswith(prefix)})
