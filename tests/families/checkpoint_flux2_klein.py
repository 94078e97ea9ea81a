"""A small random Flux2KleinPipeline in the real layout."""

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, Flux2KleinPipeline
from transformers import Qwen3ForCausalLM

from tests.families.case import Case, as_channels, as_decoded
from tests.families.checkpoint_flux2 import SCHEDULER, random_network, random_vae
from tests.families.small_parts import byte_tokenizer, small_qwen3

CASE = Case(
    (1.0, 4.0), lambda s, n: {"guidance_scale": s}, tokens=96, given=as_channels, found=as_decoded, away="",
    sources=((64, 96), (72, 64)),
)  # fmt: skip


def random_pipeline() -> Flux2KleinPipeline:
    torch.manual_seed(0)
    tokenizer = byte_tokenizer()
    text_encoder = Qwen3ForCausalLM(
        small_qwen3(len(tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=28, head_dim=8)
    )
    return Flux2KleinPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(**SCHEDULER), vae=random_vae(), text_encoder=text_encoder,
        tokenizer=tokenizer, transformer=random_network(guidance_embeds=False),
    )  # fmt: skip
