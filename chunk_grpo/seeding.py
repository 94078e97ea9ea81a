"""Seeds by name: a random stream depends on its name alone, never on the order of work."""

from __future__ import annotations

import hashlib

import torch


def derive_seed(*parts: str | int) -> int:
    """63-bit seed of the stream named by `parts`. Different names give unrelated streams."""
    digest = hashlib.sha256("|".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator(*parts: str | int) -> torch.Generator:
    """CPU generator at the start of the stream named by `parts`."""
    return torch.Generator().manual_seed(derive_seed(*parts))
