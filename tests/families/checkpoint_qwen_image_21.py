"""A small random QwenImage21Pipeline in the real layout.

Its processor is another one of transformers, since that of Qwen3-VL needs torchvision.
"""

from typing import Any

import torch
from diffusers import (
    AutoencoderKLQwenImage21,
    FlowMatchEulerDiscreteScheduler,
    QwenImage21Pipeline,
    QwenImage21Transformer2DModel,
)
from torch import Tensor
from transformers import CLIPImageProcessorPil, LlavaProcessor, Qwen3VLConfig, Qwen3VLForConditionalGeneration

from tests.families.case import Case
from tests.families.small_parts import byte_tokenizer


def on_white(pictures: Tensor) -> Tensor:
    """Pictures [B, 3, H, W] of those with an alpha channel."""
    alpha = pictures[:, 3:]
    return alpha * pictures[:, :3] + (1 - alpha)


CASE = Case(
    (1.0, 4.0),
    lambda s, n: {
        "true_cfg_scale": s, "negative_prompt": n if s > 1 else None, "use_kv_cache": False,
    },
    tokens=128, sizes=((32, 32), (64, 96)), drawn=on_white, limits=False, alone=True,
)  # fmt: skip


def random_processor() -> Any:
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["<|image_pad|>"], special_tokens=True)
    return LlavaProcessor(
        CLIPImageProcessorPil(), tokenizer, image_token="<|image_pad|>", chat_template=tokenizer.chat_template
    )


def random_pipeline() -> QwenImage21Pipeline:
    torch.manual_seed(0)
    processor = random_processor()
    config = Qwen3VLConfig(
        text_config={
            "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
            "num_key_value_heads": 1, "head_dim": 16, "vocab_size": len(processor.tokenizer),
            "max_position_embeddings": 512,
            "rope_parameters": {"mrope_section": [2, 3, 3], "rope_type": "default", "rope_theta": 1e4},
        },
        vision_config={
            "depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 32,
            "deepstack_visual_indexes": [0],
        },
    )  # fmt: skip
    transformer = QwenImage21Transformer2DModel(
        in_channels=4, out_channels=4, num_layers=2, attention_head_dim=16, num_attention_heads=2, context_in_dim=32,
        axes_dims_rope=(4, 6, 6),
    )  # fmt: skip
    vae = AutoencoderKLQwenImage21(
        base_dim=4, decoder_base_dim=4, z_dim=4, dim_mult=[1, 1, 2, 2, 2], num_res_blocks=1,
        latents_mean=[-0.7, 0.2, 0.1, 0.4], latents_std=[2.8, 1.4, 2.3, 1.9],
    )  # fmt: skip
    return QwenImage21Pipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(
            use_dynamic_shifting=True, base_shift=0.5, max_shift=0.9, max_image_seq_len=8192, shift_terminal=0.02
        ),
        vae=vae, text_encoder=Qwen3VLForConditionalGeneration(config), processor=processor, transformer=transformer,
    )  # fmt: skip
