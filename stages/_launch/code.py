"""Digest of the pipeline's code, by which unfinished work and other machines are matched."""

import hashlib
from pathlib import Path

import chunk_grpo
import stages


def add_code(digest: "hashlib._Hash") -> None:
    """Add all code of the pipeline to a digest."""
    for package in (chunk_grpo.__file__, stages.__file__):
        for path in sorted(Path(package).parent.rglob("*.py")):
            digest.update(path.read_bytes())


def code_digest() -> str:
    """Digest of all code of the pipeline."""
    digest = hashlib.sha256()
    add_code(digest)
    return digest.hexdigest()
