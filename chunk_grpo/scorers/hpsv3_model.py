"""HPSv3's network: Qwen2-VL with a head that outputs two numbers at one token.

Architecture: MizzenAI/HPSv3, hpsv3/model/qwen2vl_trainer.py (Qwen2VLRewardModelBT, rm_head_type ranknet) and
hpsv3/config/HPSv3_7B.yaml. Shape letters: B images, L tokens, P patches of all images.
"""

from __future__ import annotations

from pathlib import Path

import torch
from accelerate import init_empty_weights
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import Qwen2VLConfig, Qwen2VLModel
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLVisionRotaryEmbedding

from chunk_grpo.errors import DataError
from chunk_grpo.weights import check_shapes

WEIGHTS = "HPSv3.safetensors"

_HIDDEN = (1024, 16)
"""Hidden widths of the head."""

_NOT_USED = frozenset({"lm_head.weight"})
"""Saved weights that the reward does not use."""

_RULE = "It must be HPSv3.safetensors of MizzenAI/HPSv3, and the backbone Qwen/Qwen2-VL-7B-Instruct."


class HPSv3Network(nn.Module):
    """Qwen2-VL without its language head, and the reward head."""

    def __init__(self, config: Qwen2VLConfig) -> None:
        super().__init__()
        self.backbone = Qwen2VLModel(config)
        self.rm_head = nn.Sequential(
            nn.Linear(config.text_config.hidden_size, _HIDDEN[0]),
            nn.ReLU(),
            nn.Dropout(0.05),
            nn.Linear(_HIDDEN[0], _HIDDEN[1]),
            nn.ReLU(),
            nn.Linear(_HIDDEN[1], 2),
        )

    def forward(
        self, input_ids: torch.Tensor, reward_at: torch.Tensor, pixel_values: torch.Tensor, image_grid_thw: torch.Tensor
    ) -> torch.Tensor:
        """Mean and logarithm of the standard deviation of the preference score.

        Positions are token indices, 0 to L - 1, on all three axes of the rotary embedding. The package passes no
        positions; transformers 4.45.2, which it pins, then uses these, and the weights were trained with them.
        transformers 5 would place the image's tokens on a grid, which changes the reward.

        Padding needs no mask: attention is causal, and padding follows the last token that is read.

        Args:
            input_ids: Token ids, int64 [B, L], padded on the right.
            reward_at: Index of the reward token, int64 [B].
            pixel_values: Patches, float32 [P, 1176].
            image_grid_thw: Patches of each image in time, height and width, int64 [B, 3].

        Returns:
            float32 [B, 2].
        """
        size, length = input_ids.shape
        positions = torch.arange(length, device=input_ids.device).expand(3, size, length)
        hidden = self.backbone(
            input_ids=input_ids,
            position_ids=positions,
            pixel_values=pixel_values,
            image_grid_thw=image_grid_thw,
            use_cache=False,
        ).last_hidden_state
        at_token = hidden[torch.arange(size, device=hidden.device), reward_at]
        numbers: torch.Tensor = self.rm_head(at_token.float())
        return numbers


class _Bfloat16VisionAngles(Qwen2VLVisionRotaryEmbedding):  # type: ignore[misc]  # untyped
    """Rotary angles of image patches, with cosine and sine, in bfloat16."""

    @torch.no_grad()
    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = position_ids[..., None].bfloat16() * self.inv_freq.bfloat16()
        return self.recomposition_frequencies(angles.cos()), self.recomposition_frequencies(angles.sin())


def load_network(
    key: str, weights: Path, config: Qwen2VLConfig, vocabulary: int, dtype: torch.dtype, device: torch.device
) -> HPSv3Network:
    """Build the network from the saved weights, with only one additional weight in memory at a time.

    The configuration's vocabulary is cut to the tokenizer's number of tokens, as in the saved embeddings. The head is
    float32. DataError if the file cannot be read, or a weight is missing, unknown or of another shape.
    """
    config.text_config.vocab_size = vocabulary
    config.text_config.pad_token_id = None  # the id belongs to the full vocabulary; padding is never attended to
    with init_empty_weights(include_buffers=False):
        network = HPSv3Network(config)
    names = {_name_in_file(name): name for name in network.state_dict()}
    shapes = {_name_in_file(name): tuple(weight.shape) for name, weight in network.state_dict().items()}
    try:
        with safe_open(weights, framework="pt") as file:
            saved = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
            check_shapes(f"{key}: weights in {weights}", shapes, saved, _NOT_USED, _RULE)
            tensors = {
                names[name]: file.get_tensor(name).to(device, torch.float32 if name.startswith("rm_head.") else dtype)
                for name in names
            }
    except SafetensorError as error:
        raise DataError(f"{key}: {weights} is no complete safetensors file ({error})") from error
    network.load_state_dict(tensors, strict=True, assign=True)
    if dtype == torch.bfloat16:
        _round_angles(network.backbone)
    return network.to(device).eval().requires_grad_(False)


def _name_in_file(name: str) -> str:
    """Name of a weight in transformers 4.45.2, which the file uses."""
    return name.replace("backbone.visual.", "visual.", 1).replace("backbone.language_model.", "model.", 1)


def _round_angles(backbone: Qwen2VLModel) -> None:
    """Round the rotary embeddings' frequencies to bfloat16.

    The package converts the whole model with its buffers (hpsv3/train.py, `model.to(torch.bfloat16)`), in training and
    inference. At position 800, a frequency rounded to 8 bits changes the angle by up to one radian.
    """
    rotary = backbone.language_model.rotary_emb
    rotary.inv_freq = rotary.inv_freq.bfloat16().float()
    backbone.visual.rotary_pos_emb = _Bfloat16VisionAngles(backbone.config.vision_config)
