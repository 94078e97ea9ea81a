"""docs/parameters.md's tables and conf/params.schema.json from the models of chunk_grpo/config/.

A table stands between `<!-- table: SECTION ... -->` and `<!-- end -->`; all other text of the page is written by hand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from chunk_grpo.config.reference import Row, params_schema, rows, show, values
from chunk_grpo.errors import ConfigError
from chunk_grpo.orchestration.presets import composed

PAGE, SCHEMA = "docs/parameters.md", "conf/params.schema.json"
PRESET = "tiny"
"""Preset whose values the page has."""

_HEADER = ("key", "type", "range", "meaning", PRESET, "left out", "source")
_TABLE = re.compile(r"(?<=^<!-- table: )([\w ]+)( -->\n).*?(?=^<!-- end -->$)", re.M | re.S)
_DOCUMENT = re.compile(r"\bdocs/(\w+\.md)")


def reference(root: Path) -> dict[str, str]:
    """Content of the files, by path. ConfigError if the page has a section of params.yaml twice, or lacks one."""
    schema = params_schema()
    page = (root / PAGE).read_text(encoding="utf-8")
    _check_sections([name for found in _TABLE.finditer(page) for name in found[1].split()], schema["properties"])
    params = composed(root, PRESET)

    def table(found: re.Match[str]) -> str:
        listed = (row for name in found[1].split() for row in rows(schema, name))
        return f"{found[1]}{found[2]}\n{''.join(_lines(listed, params))}\n"

    return {PAGE: _TABLE.sub(table, page), SCHEMA: json.dumps(schema, indent=2, ensure_ascii=False) + "\n"}


def _check_sections(shown: list[str], sections: Iterable[str]) -> None:
    for name in {*shown, *sections}:
        if shown.count(name) != 1 or name not in sections:
            raise ConfigError(
                f"{PAGE}: each section of params.yaml must be in one line `<!-- table: ... -->`, which is closed by "
                f"`<!-- end -->`, got {name} {shown.count(name)} times"
            )


def _lines(listed: Iterable[Row], params: Mapping[str, Any]) -> Iterator[str]:
    yield _line(_HEADER)
    yield _line("---" for _ in _HEADER)
    for row in listed:
        found = values(params, tuple(row.key.split(".")))
        shown = "" if row.type == "section" and found and isinstance(found[0], Mapping) else _shown(found)
        texts = (row.range, row.meaning, shown, row.left_out, row.source)
        yield _line((f"`{row.key}`", row.type, *(_DOCUMENT.sub(r"[\1](\1)", text) for text in texts)))


def _shown(found: list[Any]) -> str:
    return ", ".join(f"`{show(value)}`" for value in found) or "not used"


def _line(cells: Iterable[str]) -> str:
    texts = (cell.replace("|", r"\|") for cell in cells)
    return "|" + "".join(f" {text} |" if text else " |" for text in texts) + "\n"
