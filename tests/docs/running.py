"""Run the code blocks of a page, in order, in a checkout in which the preset smoke has been run."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
from ruamel.yaml import YAML

from chunk_grpo.config import parse_params
from tests.conftest import Workspace
from tests.docs.blocks import Block
from tests.docs.commands import STARTED, commands

LIMIT = 60.0
"""Seconds for the commands of a block."""


@dataclass
class Reader:
    """One who types a page's blocks, in a checkout; `names` is what the page's Python has defined so far."""

    checkout: Workspace
    bucket: str
    names: dict[str, Any] = field(default_factory=dict)

    def run(self, block: Block) -> Any:
        """Run a block and return what it gives."""
        text = re.sub(r"\bBUCKET\b", self.bucket, block.text)
        text = re.sub(r"\bPRESET\b", "smoke", text)
        return RUNNERS[block.language](self, block, text)

    def _python(self, block: Block, text: str) -> None:
        if file := re.match(r"# (\w+\.py)\n", text):
            (self.checkout.root / file[1]).write_text(text, "utf-8")
        lines = "\n" * (block.line - 1) + text  # so that a traceback names the page's line
        folder, known = str(self.checkout.root), set(sys.modules)
        sys.path.insert(0, folder)  # as `python FILE` does in that folder
        try:
            exec(compile(lines, block.page, "exec", dont_inherit=True), self.names)
        finally:
            sys.path.remove(folder)
            for own in [module for module in set(sys.modules) - known if module in self._files()]:
                del sys.modules[own]  # another page may have a file of that name

    def _files(self) -> set[str]:
        return {path.stem for path in self.checkout.root.glob("*.py")}

    def _console_script(self) -> Path:
        """The command chunk-grpo, which need not be installed where these tests run."""
        script = self.checkout.root.parent / "programs" / "chunk-grpo"
        script.parent.mkdir(exist_ok=True)
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m chunk_grpo "$@"\n', "utf-8")
        script.chmod(0o755)
        return script

    def _shell(self, block: Block, text: str) -> None:
        foreign = sorted({words[0] for words in commands(text)} - STARTED)
        assert not foreign, f"{block.place}: {', '.join(foreign)}: no test starts it, so mark the block `not run`"
        programs = [str(self._console_script().parent), str(Path(sys.executable).parent), os.environ["PATH"]]
        shell = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=self.checkout.root,
            env=os.environ | {"PATH": os.pathsep.join(programs), "DVC_NO_ANALYTICS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            said, _ = shell.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(shell.pid, signal.SIGKILL)
            raise AssertionError(f"{block.place}: takes over {LIMIT} s, so mark the block `not run`") from None
        assert shell.returncode == 0, f"{block.place}: {said}"

    def _sql(self, _: Block, text: str) -> list[Any]:
        return duckdb.sql(text).fetchall()

    def _yaml(self, block: Block, text: str) -> None:
        if block.stages:
            self.checkout.edit(lambda raw: raw.update(merged(raw, text, block.place)))
            assert self.checkout.run("inputs") == 0
        for stage in block.stages:
            process = self.checkout.process(stage)
            _, errors = process.communicate(timeout=LIMIT)
            assert process.returncode == 0, f"{block.place}: {stage}: {errors}"


def merged(raw: dict[str, Any], text: str, source: str) -> dict[str, Any]:
    """Valid parameters with the settings of a block."""
    result: dict[str, Any] = _merged(raw, YAML(typ="safe").load(text))
    parse_params(result, source)
    return result


def _merged(base: Any, changes: Any) -> Any:
    """Mappings merged; one of another kind replaces the other."""
    if not (isinstance(base, dict) and isinstance(changes, dict)):
        return changes
    start = base if changes.get("kind", base.get("kind")) == base.get("kind") else {}
    return start | {key: _merged(start.get(key), value) for key, value in changes.items()}


RUNNERS: dict[str, Callable[[Reader, Block, str], Any]] = {
    "python": Reader._python,
    "sh": Reader._shell,
    "sql": Reader._sql,
    "yaml": Reader._yaml,
}
"""Runner of each language. Settings without stages are only checked, against the presets."""
