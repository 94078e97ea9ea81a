"""A byte-level tokenizer with a chat template, as of the language models that encode text."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

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
