"""Digest of the pipeline's code, by which unfinished work and other machines are matched."""

import hashlib
from pathlib import Path

from stages._code import PACKAGES, ROOT


def add_code(digest: "hashlib._Hash", *parts: str, checkout: Path | None = None) -> None:
    """Add code of the pipeline to a digest: packages and modules, such as `stages/train.py`; without `parts`, all.

    `checkout` is the folder with the code; None: the code that runs.
    """
    checkout = checkout or ROOT
    for package in PACKAGES:
        for path in sorted((checkout / package).rglob("*.py")):
            name = path.relative_to(checkout).as_posix()
            if not parts or any(name == part or name.startswith(f"{part}/") for part in parts):
                digest.update(path.read_bytes())


def code_digest(checkout: Path | None = None) -> str:
    """Digest of all code of the pipeline, by default the code that runs."""
    digest = hashlib.sha256()
    add_code(digest, checkout=checkout)
    return digest.hexdigest()
