"""Files of prompts, and what reading them gives."""

from pathlib import Path

import pytest

from chunk_grpo.config.prompts import PromptChecks
from chunk_grpo.errors import DataError
from chunk_grpo.prompts.read import PromptSource, read_prompt_file

STRICT = PromptChecks(duplicates="refuse", empty="refuse", spaces="refuse", too_long="refuse")
LENIENT = PromptChecks(duplicates="drop", empty="drop", spaces="strip", too_long="keep")


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def read(path: Path | str, rules: PromptChecks = STRICT, **settings: object) -> list[str]:
    return [row.text for row in read_prompt_file(PromptSource(path, **settings), rules).rows]  # type: ignore[arg-type]


def refused(path: Path | str, rules: PromptChecks = STRICT, **settings: object) -> str:
    """The message, without the file's path at its beginning."""
    with pytest.raises(DataError) as caught:
        read(path, rules, **settings)
    return str(caught.value).removeprefix(str(path)).lstrip(":, ")
