"""Advice in messages."""

import re
from pathlib import Path

from chunk_grpo.errors import install_command
from tests.conftest import ROOT

BARE = re.compile(r"pip install [^\n]*chunk-grpo(?!\[?[\w,-]*\]? @ )")


def test_an_extra_is_installed_from_the_clone() -> None:
    assert install_command("serving") == f"pip install -e '{ROOT}[serving]'"


def test_no_text_advises_to_install_a_name_that_anybody_can_register() -> None:
    folders = [ROOT / name for name in ("chunk_grpo", "stages", "infra", "docs", "benchmarks")]
    files: list[Path] = [ROOT / "README.md", *(file for each in folders for file in each.rglob("*.*"))]
    texts = {file: file.read_text("utf-8") for file in files if file.suffix in (".py", ".md", ".ipynb", ".yaml")}
    assert [str(file) for file, text in texts.items() if BARE.search(text)] == []
