"""A tiny random vision-language model that answers in the form that WISE asks for."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import (
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)

_WORDS = ("<unk>", "</s>", "<pad>", "<image>", "User", "Answer:", "Score: 0", "Score: 1")

_TEMPLATE = (
    "{% for message in messages %}User {% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image> {% else %}{{ part['text'] }} {% endif %}"
    "{% endfor %}{% endfor %}Answer:"
)


def make_judge(folder: Path, seed: int = 0) -> Path:
    """A LLaVA whose first token is `Score: 0` or `Score: 1`, as its random weights make of the image, and then ends.

    All rows of its head are zero but three: those of the two answers are opposite, so that one of them is above zero,
    and that of the end reads a channel which the answers' embeddings alone fill.
    """
    torch.manual_seed(seed)
    words = {word: index for index, word in enumerate(_WORDS)}
    text = LlamaConfig(
        vocab_size=len(words), hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, initializer_range=0.5, max_position_embeddings=4096,
        bos_token_id=None, eos_token_id=words["</s>"], pad_token_id=words["<pad>"],
    )  # fmt: skip
    vision = CLIPVisionConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=32, patch_size=8,
        initializer_range=0.5,
    )  # fmt: skip
    config = LlavaConfig(vision_config=vision, text_config=text, image_token_id=words["<image>"], image_seq_length=16)
    model = LlavaForConditionalGeneration(config).eval()
    _answer_in_form(model, words)
    model.generation_config.eos_token_id = words["</s>"]
    model.generation_config.pad_token_id = words["<pad>"]
    model.save_pretrained(folder)
    _processor(words).save_pretrained(folder)
    return folder


def _answer_in_form(model: LlavaForConditionalGeneration, words: dict[str, int]) -> None:
    layer, projector = model.model.language_model.layers[0], model.model.multi_modal_projector
    embedding, head = model.get_input_embeddings().weight, model.lm_head.weight
    with torch.no_grad():
        for weight in (layer.self_attn.o_proj.weight, layer.mlp.down_proj.weight, projector.linear_2.weight):
            weight[0] = 0
        projector.linear_2.bias[0] = 0
        embedding[:, 0] = 0
        for neutral in ("<unk>", "User", "Answer:"):
            embedding[words[neutral]] = 0  # the image alone decides
        opinion = torch.randn(16)
        opinion[0] = 0
        head.zero_()
        head[words["Score: 0"]], head[words["Score: 1"]] = opinion, -opinion
        head[words["</s>"], 0] = 1
        for answer in ("Score: 0", "Score: 1"):
            embedding[words[answer]] = 0
            embedding[words[answer], 0] = 1000


def _processor(words: dict[str, int]) -> LlavaProcessor:
    inner = Tokenizer(WordLevel(words, unk_token="<unk>"))
    inner.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<unk>", eos_token="</s>", pad_token="<pad>",
        additional_special_tokens=["<image>"],
    )  # fmt: skip
    return LlavaProcessor(
        CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}),
        tokenizer, patch_size=8, vision_feature_select_strategy="default", chat_template=_TEMPLATE,
        num_additional_image_tokens=1,
    )  # fmt: skip
