"""A small random StableDiffusion3Pipeline in the real layout."""

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel, StableDiffusion3Pipeline
from transformers import CLIPTextConfig, CLIPTextModelWithProjection, CLIPTokenizer, T5EncoderModel, T5TokenizerFast

from tests.families.case import Case, as_pixels
from tests.families.small_parts import TINY, small_vae

CASE = Case(
    (1.0, 4.5), lambda s, n: {"guidance_scale": s, "negative_prompt": n}, tokens=8, given=as_pixels, found=as_pixels
)


def random_pipeline() -> StableDiffusion3Pipeline:
    """SD3.5's kind: normalised queries and keys, dual attention in the first block. Its T5 is the toy's."""
    torch.manual_seed(0)
    tokenizer = CLIPTokenizer.from_pretrained(TINY / "tokenizer")

    def clip() -> CLIPTextModelWithProjection:
        config = CLIPTextConfig(
            hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, projection_dim=32,
            vocab_size=len(tokenizer), max_position_embeddings=tokenizer.model_max_length,
            bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )  # fmt: skip
        return CLIPTextModelWithProjection(config)

    transformer = SD3Transformer2DModel(
        sample_size=32, in_channels=4, out_channels=4, num_layers=2, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=64, caption_projection_dim=32, pooled_projection_dim=64, pos_embed_max_size=24,
        dual_attention_layers=(0,), qk_norm="rms_norm",
    )  # fmt: skip
    vae = small_vae(1.5305, 0.0609)
    return StableDiffusion3Pipeline(
        transformer=transformer,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=vae,
        text_encoder=clip(),
        tokenizer=tokenizer,
        text_encoder_2=clip(),
        tokenizer_2=tokenizer,
        text_encoder_3=T5EncoderModel.from_pretrained(TINY / "text_encoder_2", dtype=torch.float32),
        tokenizer_3=T5TokenizerFast.from_pretrained(TINY / "tokenizer_2"),
    )
