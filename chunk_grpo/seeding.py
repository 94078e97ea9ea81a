"""Seeds by name: a random stream depends on its name alone, never on the order of work."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def derive_seed(*parts: str | int) -> int:
    """63-bit seed of the stream named by `parts`. Different names give unrelated streams."""
    digest = hashlib.sha256("|".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator(*parts: str | int) -> torch.Generator:
    """CPU generator at the start of the stream named by `parts`."""
    import torch  # the stage `inputs` derives seeds only, and runs at every `dvc repro`: torch takes 1.5 s

    return torch.Generator().manual_seed(derive_seed(*parts))
