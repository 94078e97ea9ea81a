"""How many tokens a prompt has for each text encoder of a checkpoint, and how many the encoder takes."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping
from typing import TypeAlias

from chunk_grpo.errors import DataError
from chunk_grpo.families.checkpoint import check_checkpoint

TokenLimits: TypeAlias = Mapping[str, tuple[Callable[[str], int], int]]
"""Name of a text encoder to (counts a prompt's tokens, most that it takes); special tokens count. A prompt that cannot
have more than that, because it has not as many bytes, is not tokenised: its bytes are given for its tokens."""

_ADDED = 2
"""CLIP's tokens for start and end, or T5's for the end and for the space that it sets before a prompt."""


def flux_token_limits(checkpoint: str, revision: str | None, max_sequence_length: int) -> TokenLimits:
    """CLIP's and T5's, of a FluxPipeline; the tokenizers alone are loaded.

    Args:
        checkpoint: Folder in the diffusers layout, or hub id.
        revision: Hub commit.
        max_sequence_length: T5 tokens that the model is given.

    Raises:
        DataError: The checkpoint is missing, incomplete, or cannot be downloaded.
    """
    from transformers import AutoTokenizer  # takes seconds, before which faults of the prompts are told

    check_checkpoint(checkpoint, "FluxPipeline", ("tokenizer", "tokenizer_2"))
    limits: dict[str, tuple[Callable[[str], int], int]] = {}
    for name, folder, limit in (("CLIP", "tokenizer", None), ("T5", "tokenizer_2", max_sequence_length)):
        try:
            tokenizer = AutoTokenizer.from_pretrained(checkpoint, subfolder=folder, revision=revision)
        except (OSError, ValueError) as error:
            raise DataError(
                f"model.checkpoint: cannot load {folder} of {checkpoint} (revision {revision}): {error}"
            ) from error
        most = limit or int(tokenizer.model_max_length)
        limits[name] = (_counter(tokenizer, most), most)
    return limits


def _counter(tokenizer: object, limit: int) -> Callable[[str], int]:
    def count(text: str) -> int:
        at_most = _at_most(text)
        if at_most <= limit:
            return at_most
        return len(tokenizer(text, verbose=False)["input_ids"])  # type: ignore[operator]  # transformers' base class

    return count


def _at_most(text: str) -> int:
    """Tokens that no tokenizer exceeds: each stands for a byte at least of the text as the tokenizer normalises it.

    CLIP's composes it (NFC) and lowers its letters, T5's replaces compatible characters (NFKC), others leave it alone;
    any of these may be the longest: a letter of full width has 3 bytes in the first and 1 in the second, a ligature of
    Arabic words 3 and 33.
    """
    forms = (text, unicodedata.normalize("NFC", text).lower(), unicodedata.normalize("NFKC", text))
    return max(len(form.encode()) for form in forms) + _ADDED
