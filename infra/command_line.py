"""What sub-commands of chunk-grpo share: their parser, types of options, and the parameters that they are about."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chunk_grpo.config import read_raw_params


def command_parser(name: str, text: str | None) -> argparse.ArgumentParser:
    """A parser of `chunk-grpo NAME`, whose help begins with the lines of `text` as they are."""
    return argparse.ArgumentParser(
        prog=f"chunk-grpo {name}", description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def count(text: str) -> int:
    """Type of an option: a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return int(text)


def positive(text: str) -> float:
    """Type of an option: a number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number above 0, got {text!r}")
    return value


def raw_params(root: Path, preset: str | None, file: Path) -> tuple[Mapping[str, Any], str]:
    """Parameters of a preset, or without one of a file, and their name in errors."""
    if preset is None:
        return read_raw_params(file), str(file)
    from chunk_grpo.orchestration.presets import composed  # here: importing DVC takes half a second

    return composed(root, preset), f"conf/preset/{preset}.yaml"
