"""Digest of the pipeline's code, by which unfinished work and other machines are matched."""

import hashlib

from stages._code import PACKAGES, ROOT


def add_code(digest: "hashlib._Hash", *parts: str) -> None:
    """Add code of the pipeline to a digest.

    Args:
        digest: Digest to update.
        parts: Packages and modules, such as `chunk_grpo/core` and `stages/train.py`; none: all.
    """
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if not parts or any(name == part or name.startswith(f"{part}/") for part in parts):
                digest.update(path.read_bytes())


def code_digest() -> str:
    """Digest of all code of the pipeline."""
    digest = hashlib.sha256()
    add_code(digest)
    return digest.hexdigest()
