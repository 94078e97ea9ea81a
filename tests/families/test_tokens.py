"""Token counts of a checkpoint's text encoders, as its own tokenizers count."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from chunk_grpo.errors import DataError
from chunk_grpo.families.tokens import flux_token_limits

TINY = Path(__file__).resolve().parents[2] / "assets" / "tiny-flux"
LONG = "a red circle left of a blue square " * 9


def test_limits_are_those_of_the_encoders() -> None:
    limits = flux_token_limits(str(TINY), None, 8)
    assert {name: limit for name, (_, limit) in limits.items()} == {
        "CLIP": AutoTokenizer.from_pretrained(TINY / "tokenizer").model_max_length,
        "T5": 8,
    }


@pytest.mark.parametrize("text", [LONG, "a red circle", "ﷺ" * 9, "İ" * 60, "👩‍🚀" * 20, ""])
def test_a_prompt_that_is_too_long_is_counted_and_no_other_passes_for_one(text: str) -> None:
    """Some characters are one byte for the eye and many for a tokenizer: a ligature, a capital with a dot, an emoji."""
    for name, folder in (("CLIP", "tokenizer"), ("T5", "tokenizer_2")):
        count, limit = flux_token_limits(str(TINY), None, 8)[name]
        tokens = len(AutoTokenizer.from_pretrained(TINY / folder)(text)["input_ids"])
        assert (count(text) > limit) == (tokens > limit)
        if tokens > limit:
            assert count(text) == tokens


def test_a_checkpoint_without_tokenizers_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"model\.checkpoint: the folder .* does not exist"):
        flux_token_limits(str(tmp_path / "nothing"), None, 8)
