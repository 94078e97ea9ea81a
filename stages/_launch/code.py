"""Digest of the pipeline's code, by which unfinished work and other machines are matched."""

import hashlib
from pathlib import Path

import chunk_grpo
import stages


def add_code(digest: "hashlib._Hash", *parts: str) -> None:
    """Add code of the pipeline to a digest.

    Args:
        digest: Digest to update.
        parts: Packages and modules, such as `chunk_grpo/core` and `stages/train.py`; none: all.
    """
    for package in (chunk_grpo.__file__, stages.__file__):
        root = Path(package).parent
        for path in sorted(root.rglob("*.py")):
            name = f"{root.name}/{path.relative_to(root).as_posix()}"
            if not parts or any(name == part or name.startswith(f"{part}/") for part in parts):
                digest.update(path.read_bytes())


def code_digest() -> str:
    """Digest of all code of the pipeline."""
    digest = hashlib.sha256()
    add_code(digest)
    return digest.hexdigest()
