"""FLUX.2-klein: folders and hub ids with a diffusers Flux2KleinPipeline."""

from __future__ import annotations

from typing import Any, ClassVar

from diffusers import Flux2KleinPipeline

from chunk_grpo.families.models.flux2 import Flux2Family


class Flux2KleinFamily(Flux2Family):
    """FLUX.2-klein. Text: tokens of three layers of Qwen3. The base models use classifier-free guidance."""

    pipeline_class: ClassVar[Any] = Flux2KleinPipeline
    tokenizers: ClassVar = {"Qwen3": ("tokenizer", True)}

    @classmethod
    def token_count(cls, tokenizer: Any, prompt: str) -> int:
        """Tokens of a prompt in the chat template."""
        messages = [{"role": "user", "content": prompt}]
        text = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
        )
        return super(Flux2Family, cls).token_count(tokenizer, text)


FAMILY = Flux2KleinFamily
