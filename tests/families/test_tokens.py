"""Token counts of a checkpoint's text encoders, as its own tokenizers count."""

import shutil
from pathlib import Path
from typing import Final
from unicodedata import normalize

import pytest
from transformers import AutoTokenizer

from chunk_grpo.errors import DataError
from chunk_grpo.families.tokens import token_limits
from tests.families.conftest import edit_json

TINY = Path(__file__).resolve().parents[2] / "assets" / "tiny-flux"
LONG = "a red circle left of a blue square " * 9
FORMS: Final = ("NFC", "NFD", "NFKC")


def test_token_limits_match_encoders():
    limits = token_limits("flux", str(TINY), None, 8)
    assert {name: limit for name, (_, limit) in limits.items()} == {
        "CLIP": AutoTokenizer.from_pretrained(TINY / "tokenizer").model_max_length,
        "T5": 8,
    }


@pytest.mark.parametrize("text", [LONG, "a red circle", "ﷺ" * 9, "İ" * 60, "👩‍🚀" * 20, "\uff21" * 12, ""])
def test_a_prompt_that_is_too_long_is_counted_and_no_other_passes_for_one(text):
    """Some characters are one byte for the eye and many for a tokenizer: a ligature, a capital with a dot, an emoji, a
    letter of full width.
    """
    for name, folder in (("CLIP", "tokenizer"), ("T5", "tokenizer_2")):
        count, limit = token_limits("flux", str(TINY), None, 8)[name]
        tokens = len(AutoTokenizer.from_pretrained(TINY / folder)(text)["input_ids"])
        assert (count(text) > limit) == (tokens > limit)
        if tokens > limit:
            assert count(text) == tokens


def test_no_character_has_more_tokens_than_a_prompt_is_taken_to_have_at_most(tmp_path):
    """With a limit that no prompt reaches, the number of tokens is bounded by the limit."""
    for folder in ("tokenizer", "tokenizer_2"):
        shutil.copytree(TINY / folder, tmp_path / folder)
    shutil.copy(TINY / "model_index.json", tmp_path)
    settings = tmp_path / "tokenizer" / "tokenizer_config.json"
    edit_json(settings, {"model_max_length": 1000})
    limits = token_limits("flux", str(tmp_path), None, 1000)
    odd = [chr(code) for code in range(0x20, 0x110000) if not 0xD800 <= code <= 0xDFFF]
    odd = [one for one in odd if one.lower() != one or any(normalize(form, one) != one for form in FORMS)]
    texts = [f"{one * 3} {one}" for one in odd]
    for name, folder in (("CLIP", "tokenizer"), ("T5", "tokenizer_2")):
        found = AutoTokenizer.from_pretrained(TINY / folder)(texts, verbose=False)["input_ids"]
        count, _ = limits[name]
        assert not [text for text, ids in zip(texts, found, strict=True) if len(ids) > count(text)]


def test_a_checkpoint_without_tokenizers_is_named(tmp_path):
    with pytest.raises(DataError, match=r"model\.checkpoint: the folder .* does not exist"):
        token_limits("flux", str(tmp_path / "nothing"), None, 8)
