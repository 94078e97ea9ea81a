"""A small random Flux2KleinPipeline in the real layout."""

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, Flux2KleinPipeline
from transformers import Qwen3Config, Qwen3ForCausalLM

from tests.families.case import Case, as_channels, as_decoded
from tests.families.checkpoint_flux2 import SCHEDULER, random_network, random_vae
from tests.families.language_models import byte_tokenizer

CASE = Case(
    (1.0, 4.0), lambda s, n: {"guidance_scale": s}, tokens=96, given=as_channels, found=as_decoded, away=""
)


def random_pipeline() -> Flux2KleinPipeline:
    torch.manual_seed(0)
    tokenizer = byte_tokenizer()
    text_encoder = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=28, head_dim=8,
            num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=512,
        )
    )  # fmt: skip
    return Flux2KleinPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(**SCHEDULER), vae=random_vae(), text_encoder=text_encoder,
        tokenizer=tokenizer, transformer=random_network(guidance_embeds=False),
    )  # fmt: skip
