"""Embeddings of prompts, for stages and users alike."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from chunk_grpo.families.base import Conditioning
from chunk_grpo.library.encoding import encoded
from chunk_grpo.parallel import Workers


class SizedEncoder:
    """A text encoder whose result depends on the number of texts, as rounding does."""

    def encode(self, texts: Sequence[str], pictures: object = None, away: object = None) -> Conditioning:
        return Conditioning({"embeds": torch.tensor([[len(text), len(texts)] for text in texts])})


@pytest.mark.parametrize("batch_size", [1, 2, 3, 4, 9])
def test_a_text_has_the_same_embedding_whichever_others_are_encoded(batch_size: int) -> None:
    texts = ["a", "ab", "abc", "abcd"]
    family: Any = SizedEncoder()
    rows = torch.cat([each["embeds"] for each in encoded(family, texts, batch_size, Workers.alone())])
    assert rows.tolist() == [[len(text), batch_size] for text in texts]
