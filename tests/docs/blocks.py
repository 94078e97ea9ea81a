"""The code blocks of the pages, and what the comment before a block says of it.

A fenced block names its language; an indented one holds commands for a shell. test_code_blocks.py runs or checks
each, unless the line before it is `<!-- not run: REASON -->`. Settings after `<!-- run: STAGE, STAGE -->` are put into
params.yaml, and those stages run. Viewers of Markdown hide both.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

from tests.architecture.test_docs import PAGES, ROOT

MARK = re.compile(r"<!-- (not run|run): (.+?) -->", re.S)
PARSER = MarkdownIt("commonmark").enable("table")


@dataclass(frozen=True)
class Block:
    """A code block of a page: the line where its code begins, what runs with it, or the reason why nothing does."""

    page: str
    line: int
    language: str
    text: str
    stages: tuple[str, ...] = ()
    reason: str | None = None

    @property
    def place(self) -> str:
        return f"{self.page}, line {self.line}"


def blocks(text: str, page: str) -> Iterator[Block]:
    """The code blocks of a page, in order."""
    before = ""
    for token in PARSER.parse(text):
        if token.type in ("fence", "code_block"):
            assert token.map
            fenced = token.type == "fence"
            mark = MARK.fullmatch(before)
            reason = mark[2] if mark and mark[1] == "not run" else None
            stages = tuple(mark[2].split(", ")) if mark and mark[1] == "run" else ()
            language = token.info.strip() if fenced else "sh"
            yield Block(page, token.map[0] + 1 + fenced, language, token.content, stages, reason)
        before = token.content.strip() if token.type == "html_block" else ""


def spans(text: str) -> list[str]:
    """The code within the sentences and tables of a page."""
    inner = [child for token in PARSER.parse(text) for child in token.children or ()]
    return [" ".join(child.content.split()) for child in inner if child.type == "code_inline"]


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


TEXTS = {name(page): page.read_text("utf-8") for page in PAGES}
BLOCKS = [block for page, text in TEXTS.items() for block in blocks(text, page)]
