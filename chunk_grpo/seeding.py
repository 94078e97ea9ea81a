"""Seeds by name: every random stream is a function of what it is for, never of the order in which work is done."""

from __future__ import annotations

import hashlib

import torch


def derive_seed(*parts: str | int) -> int:
    """A 63-bit seed for the stream named by `parts`; different parts give unrelated streams."""
    digest = hashlib.sha256("|".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator(*parts: str | int) -> torch.Generator:
    """A CPU generator at the start of the stream named by `parts`."""
    return torch.Generator().manual_seed(derive_seed(*parts))
