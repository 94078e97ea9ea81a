"""The parser of a sub-command of chunk-grpo."""

from __future__ import annotations

import argparse


def command_parser(name: str, text: str | None) -> argparse.ArgumentParser:
    """A parser of `chunk-grpo NAME`, whose help begins with the lines of `text` as they are."""
    return argparse.ArgumentParser(
        prog=f"chunk-grpo {name}",
        description=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
