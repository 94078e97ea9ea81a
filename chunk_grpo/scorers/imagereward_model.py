"""ImageReward's network: transformers' two BLIP encoders and the head, loaded from the authors' weights.

Source: package image-reward 1.5, ImageReward.py (classes MLP and ImageReward) and models/BLIP (vit.py, med.py, blip.py,
blip_pretrain.py). These modules need an old transformers version. BlipVisionModel and BlipTextModel of the current
version compute the same with other weight names.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from transformers import BlipTextConfig, BlipTextModel, BlipVisionConfig, BlipVisionModel

from chunk_grpo.config.scorer_settings import Dtype
from chunk_grpo.errors import DataError
from chunk_grpo.scorers.regression_head import regression_head
from chunk_grpo.scorers.running.checkpoints import readable
from chunk_grpo.weights import check_shapes

MODEL_FILES = ("ImageReward.pt", "med_config.json")
"""Files of THUDM/ImageReward."""

REWARD_MEAN = 0.16717362830052426
REWARD_STD = 1.0333394966054072
"""Mean and standard deviation that standardise the head's output; image-reward 1.5, ImageReward.py."""

UNUSED_WEIGHTS = frozenset(
    {
        "blip.vision_proj.weight",
        "blip.vision_proj.bias",
        "blip.text_proj.weight",
        "blip.text_proj.bias",
        "blip.text_encoder.embeddings.position_ids",
    }
)
"""Weights of ImageReward.pt that the reward does not use: projections of BLIP's pretraining, and position ids."""

_NAMES_IN_FILE = (
    (r"^text\.", "blip.text_encoder."),
    (r"^head\.", "mlp.layers."),
    (r"^vision\.", "blip.visual_encoder."),
    (r"\.embeddings\.class_embedding$", ".cls_token"),
    (r"\.embeddings\.position_embedding$", ".pos_embed"),
    (r"\.embeddings\.patch_embedding\.", ".patch_embed.proj."),
    (r"\.post_layernorm\.", ".norm."),
    (r"\.encoder\.layers\.", ".blocks."),
    (r"\.layer_norm([12])\.", r".norm\1."),
    (r"\.self_attn\.qkv\.", ".attn.qkv."),
    (r"\.self_attn\.projection\.", ".attn.proj."),
)
"""Rules from this module's weight names (transformers) to names in ImageReward.pt (the authors' vit.py). The text
encoder's names are equal in both and match none of the rules for the image encoder."""

_MED_SETTINGS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
    "hidden_act",
    "layer_norm_eps",
    "pad_token_id",
)
"""Keys read from med_config.json. Its encoder_width is replaced by the image encoder's, as in blip_pretrain.py."""

_HEAD_DIM = 64
"""Width of an attention head of the vision tower: ViT-L has width 1024 and 16 heads, ViT-B 768 and 12 (blip.py,
create_vit)."""


class RewardModel(nn.Module):
    """BLIP's image encoder, text encoder with cross-attention to the image, and head on the first text token."""

    def __init__(self, vision: BlipVisionConfig, text: BlipTextConfig) -> None:
        super().__init__()
        self.vision = BlipVisionModel(vision)
        self.text = BlipTextModel(text, add_pooling_layer=False)
        self.head = regression_head(text.hidden_size)

    @property
    def image_size(self) -> int:
        """Height and width of the input images in pixels."""
        return int(self.vision.config.image_size)

    def forward(self, pixels: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
        """Standardised rewards [B], float32.

        Args:
            pixels: Normalised images [B, 3, image_size, image_size].
            ids: Token ids [B, T].
            mask: Attention mask [B, T], 0 at padding.
        """
        patches = self.vision(pixel_values=pixels.to(self.vision.dtype)).last_hidden_state
        hidden = self.text(
            input_ids=ids,
            attention_mask=mask,
            encoder_hidden_states=patches,
            is_decoder=False,  # no causal mask: every token attends to the whole prompt
        ).last_hidden_state
        rewards: Tensor = self.head(hidden[:, 0].float())[:, 0]
        return (rewards - REWARD_MEAN) / REWARD_STD


def load_model(key: str, folder: Path, dtype: Dtype, device: str) -> RewardModel:
    """Load ImageReward.pt, with sizes read from its weights and from med_config.json.

    BLIP has the dtype, the head float32. DataError if a file is damaged, or names weights that are missing, surplus or
    of another shape.
    """
    path = folder / "ImageReward.pt"
    with readable(f"{key}: a file in {folder} cannot be read"):
        med = json.loads((folder / "med_config.json").read_text(encoding="utf-8"))
        tensors: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    try:
        model = _empty_model(tensors, med)
    except (KeyError, IndexError, ValueError, TypeError, StrictDataclassError) as error:
        raise DataError(f"{key}: {folder} holds no ImageReward ({type(error).__name__}: {error}).") from error
    named = {name: _name_in_file(name) for name in model.state_dict()}
    check_shapes(
        f"{key}: weights in {path}",
        {named[name]: value.shape for name, value in model.state_dict().items()},
        {name: value.shape for name, value in tensors.items()},
        UNUSED_WEIGHTS,
        "med_config.json beside it belongs to another ImageReward. Fetch both files again, from one revision.",
    )
    model.load_state_dict({name: tensors[named[name]].float() for name in named}, assign=True)
    model.vision.to(getattr(torch, dtype))
    model.text.to(getattr(torch, dtype))
    return model.to(device).eval()


def _name_in_file(name: str) -> str:
    for pattern, replacement in _NAMES_IN_FILE:
        name = re.sub(pattern, replacement, name)
    return name


def _empty_model(tensors: Mapping[str, Tensor], med: Mapping[str, Any]) -> RewardModel:
    """Model without weights. Image encoder sizes come from weight shapes, text encoder sizes from med_config.json."""
    width, _, patch, _ = tensors["blip.visual_encoder.patch_embed.proj.weight"].shape
    patches = tensors["blip.visual_encoder.pos_embed"].shape[1] - 1
    side = math.isqrt(patches)
    if width % _HEAD_DIM or side * side != patches:
        raise ValueError(
            f"an image encoder needs a width divisible by {_HEAD_DIM} and a square number of patches, got {width} and "
            f"{patches}"
        )
    blocks = {name.split(".")[3] for name in tensors if name.startswith("blip.visual_encoder.blocks.")}
    vision = BlipVisionConfig(
        hidden_size=width,
        intermediate_size=tensors["blip.visual_encoder.blocks.0.mlp.fc1.bias"].shape[0],
        num_hidden_layers=len(blocks),
        num_attention_heads=width // _HEAD_DIM,
        image_size=side * patch,
        patch_size=patch,
        hidden_act="gelu",
        layer_norm_eps=1e-6,  # vit.py; transformers' default is 1e-5
    )
    text = BlipTextConfig(
        **{name: med[name] for name in _MED_SETTINGS},
        encoder_hidden_size=width,
        is_decoder=True,  # gives the layers their cross-attention
        bos_token_id=None,
        sep_token_id=None,
    )
    with init_empty_weights(include_buffers=False):
        return RewardModel(vision, text)
