"""Files of prompts, and what reading them gives."""

from pathlib import Path

import pytest

from chunk_grpo.config.prompts import PromptChecks, PromptFile
from chunk_grpo.errors import DataError
from chunk_grpo.prompts.read import read_prompt_file
from chunk_grpo.prompts.rows import CheckedPrompts

STRICT = PromptChecks(duplicates="refuse", empty="refuse", spaces="refuse", too_long="refuse")
LENIENT = PromptChecks(duplicates="drop", empty="drop", spaces="strip", too_long="keep")


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def checked(path: Path | str, rules: PromptChecks = STRICT, **settings: object) -> CheckedPrompts:
    return read_prompt_file(PromptFile(path=str(path), **settings), rules)  # type: ignore[arg-type]


def read(path: Path | str, rules: PromptChecks = STRICT, **settings: object) -> list[str]:
    return [row.text for row in checked(path, rules, **settings).rows]


def refused(path: Path | str, rules: PromptChecks = STRICT, **settings: object) -> str:
    """The message, without the file's path at its beginning."""
    with pytest.raises(DataError) as caught:
        read(path, rules, **settings)
    return str(caught.value).removeprefix(str(path)).lstrip(":, ")
