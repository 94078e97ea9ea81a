"""A small random QwenImagePipeline in the real layout, and the parts that the one for editing shares with it."""

from typing import Any

import torch
from diffusers import (
    AutoencoderKLQwenImage,
    FlowMatchEulerDiscreteScheduler,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
)
from transformers import PreTrainedTokenizerFast, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from tests.families.case import Case
from tests.families.small_parts import byte_tokenizer

CASE = Case((1.0, 4.0), lambda s, n: {"true_cfg_scale": s, "negative_prompt": n if s > 1 else None}, tokens=256)


def random_pipeline() -> QwenImagePipeline:
    return QwenImagePipeline(**random_parts(byte_tokenizer()))


def random_parts(tokenizer: PreTrainedTokenizerFast, **marks: int) -> dict[str, Any]:
    """Components by name; the text encoder has its own numbers of the tokens that stand for pictures, or `marks`."""
    torch.manual_seed(0)
    config = Qwen2_5_VLConfig(
        text_config={
            "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
            "num_key_value_heads": 1, "vocab_size": len(tokenizer), "max_position_embeddings": 512,
            "rope_parameters": {"mrope_section": [2, 3, 3], "rope_type": "default", "rope_theta": 1e4},
        },
        vision_config={"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 32},
        **marks,
    )  # fmt: skip
    transformer = QwenImageTransformer2DModel(
        in_channels=16, out_channels=4, num_layers=2, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=32, axes_dims_rope=(4, 6, 6),
    )  # fmt: skip
    vae = AutoencoderKLQwenImage(
        base_dim=8, z_dim=4, dim_mult=[1, 2, 2], num_res_blocks=1, temperal_downsample=[False, True],
        latents_mean=[-0.7, 0.2, 0.1, 0.4], latents_std=[2.8, 1.4, 2.3, 1.9],
    )  # fmt: skip
    return {
        "scheduler": FlowMatchEulerDiscreteScheduler(
            use_dynamic_shifting=True, base_shift=0.5, max_shift=0.9, max_image_seq_len=8192, shift_terminal=0.02
        ),
        "vae": vae, "text_encoder": Qwen2_5_VLForConditionalGeneration(config), "tokenizer": tokenizer,
        "transformer": transformer,
    }  # fmt: skip
