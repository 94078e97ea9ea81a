"""Virtual environments with original packages, kept in the temporary folder from run to run."""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(tempfile.gettempdir()) / "chunk-grpo-originals"


def script_dependencies(script: Path) -> list[str]:
    """Of a script's PEP 723 block."""
    text = script.read_text(encoding="utf-8")
    block = re.search(r"^# dependencies = \[\n((?:#.*\n)*?)# \]$", text, re.M)
    assert block, script
    return re.findall(r'"([^"]+)"', block.group(1))


def environment_for(name: str, dependencies: list[str]) -> Path:
    """The interpreter of an environment with these packages; made unless a complete one is there."""
    home = FOLDER / name
    python = home / "bin" / "python"
    done = home / "complete.txt"
    wanted = "\n".join([*dependencies, sys.version])
    if not done.exists() or done.read_text(encoding="utf-8") != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", home], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *dependencies], check=True)
        done.write_text(wanted, encoding="utf-8")
    return python
