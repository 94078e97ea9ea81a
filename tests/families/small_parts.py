"""Parts that small random checkpoints share: a byte-level tokenizer with a chat template, a language model, a VAE."""

from pathlib import Path

from diffusers import AutoencoderKL
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config

TINY = Path(__file__).parents[2] / "assets" / "tiny-flux"

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}: {{ message.content if message.content is string "
    "else message.content[0].text }}<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}{% endif %}"
)
"""As of Qwen3 in form: without `enable_thinking` an empty thought is added."""


def byte_tokenizer(**options: object) -> PreTrainedTokenizerFast:
    """A token for each byte, and four special ones."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    found = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<|pad|>", eos_token="<|im_end|>", padding_side="right",
        additional_special_tokens=["<|im_start|>", "[IMG]"], **options,
    )  # fmt: skip
    found.chat_template = TEMPLATE
    return found


def small_qwen3(vocabulary: int, **sizes: int) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=vocabulary, num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=512, **sizes
    )  # fmt: skip


def small_vae(scaling_factor: float, shift_factor: float) -> AutoencoderKL:
    """Four latent channels, a quarter of the sides."""
    return AutoencoderKL(
        down_block_types=["DownEncoderBlock2D"] * 3, up_block_types=["UpDecoderBlock2D"] * 3,
        block_out_channels=[8, 8, 16], layers_per_block=1, latent_channels=4, norm_num_groups=4,
        use_quant_conv=False, use_post_quant_conv=False, scaling_factor=scaling_factor, shift_factor=shift_factor,
    )  # fmt: skip
