"""Token counts of prompts for each text encoder of a checkpoint, and the encoders' limits."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from chunk_grpo.errors import DataError, one_line
from chunk_grpo.families.registry import family_class

if TYPE_CHECKING:
    from chunk_grpo.families.diffusers_family import DiffusersFamily

TokenLimits: TypeAlias = Mapping[str, tuple[Callable[[str], int], int]]
"""By name of the text encoder: (function that counts the tokens of a prompt, limit). Special tokens count. A prompt
with few enough bytes for the limit is not tokenised: the count is then an upper bound from its bytes."""

_ADDED = 2
"""Least number of added tokens: CLIP's start and end, or T5's end and the space before the prompt."""


def token_limits(family: str, checkpoint: str, revision: str | None, max_sequence_length: int) -> TokenLimits:
    """Token limits of a checkpoint's text encoders. Loads only the tokenizers.

    Args:
        family: `model.family`.
        checkpoint: Folder in the diffusers layout, or hub id.
        revision: Hub commit; None for a folder.
        max_sequence_length: Number of tokens that the model receives of the encoder with the longer texts.

    Raises:
        ConfigError: There is no such family.
        DataError: The checkpoint is missing, incomplete, or cannot be downloaded.
    """
    # These take seconds; errors of prompts are reported before.
    from transformers import AutoTokenizer

    from chunk_grpo.families.weights.checkpoint import AGAIN, check_files
    from chunk_grpo.families.weights.hub import downloaded
    from chunk_grpo.families.weights.records import may_be_hub_id

    of = family_class(family)
    folders = [folder for folder, _ in of.tokenizers.values()]
    if may_be_hub_id(checkpoint):
        # A folder, since of a hub id the tokenizer asks for files that no repository has, and fails without a network.
        patterns = ("model_index.json", *(f"{folder}/*" for folder in folders))
        checkpoint = str(downloaded("model.checkpoint", checkpoint, revision, patterns))
    check_files(checkpoint, of.pipeline_class, folders)
    limits: dict[str, tuple[Callable[[str], int], int]] = {}
    for name, (folder, is_limited) in of.tokenizers.items():
        try:
            tokenizer = AutoTokenizer.from_pretrained(checkpoint, subfolder=folder)
        except (OSError, ValueError) as error:
            raise DataError(
                f"model.checkpoint: cannot load {folder} of {checkpoint}: {one_line(error)}. {AGAIN}"
            ) from error
        most = max_sequence_length if is_limited else int(tokenizer.model_max_length)
        limits[name] = (_counter(of, tokenizer, most), most)
    return limits


def _counter(of: type[DiffusersFamily], tokenizer: object, limit: int) -> Callable[[str], int]:
    added = max(_ADDED, of.token_count(tokenizer, ""))

    def count(text: str) -> int:
        at_most = _at_most(text) + added
        return at_most if at_most <= limit else of.token_count(tokenizer, text)

    return count


def _at_most(text: str) -> int:
    """Upper bound of the tokens of the text alone: each covers at least one byte of the normalised text.

    CLIP's tokenizer composes (NFC) and lowercases the text, T5's replaces compatible characters (NFKC), others leave it
    unchanged. Any of the three may be the longest: a full-width letter has 3 bytes in NFC and 1 in NFKC, an Arabic
    ligature 3 and 33.
    """
    forms = (text, unicodedata.normalize("NFC", text).lower(), unicodedata.normalize("NFKC", text))
    return max(len(form.encode()) for form in forms)
