"""Code of the stages: the files of each, which `inputs` records, the copy that the stages of a run use.

DVC hashes what a stage depends on when the stage has ended, and code is imported until then. So a stage does not depend
on files of code, which may be edited meanwhile, but on their record, and runs a copy of what was recorded.
"""

import hashlib
import os
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from chunk_grpo.artifacts import read_json
from chunk_grpo.artifacts.manifest import COMMIT_OF_COPY, code_commit
from chunk_grpo.errors import DataError
from chunk_grpo.imports import imported_files

PACKAGES = ("chunk_grpo", "stages")

COPY = Path(".code")
"""The copy, in the current folder. `stages/__init__.py` lets the stages of DVC import it."""

ROOT = Path(__file__).resolve().parents[1]
"""Folder with the code that this process runs: a checkout, or a copy."""

_PUBLIC = "chunk_grpo"
"""Its `__init__` names functions of the library, and imports them when they are asked for. Stages ask for none."""

BY_NAME = {"chunk_grpo.families.registry": "chunk_grpo/families/models", "stages.check_scorers": "chunk_grpo/scorers"}
"""Packages whose modules a module imports by name.

Other stages than check_scorers depend on a scorer's version in its spec, so that a change of one scorer repeats only
the stages that use it."""


def copy_code(copy: Path = COPY) -> None:
    """Make `copy` equal to the code of this process, and note the commit of its checkout beside it.

    Files with the same content stay, with their bytecode.
    """
    source = {path.relative_to(ROOT): path for name in PACKAGES for path in _files(ROOT / name)}
    there = {path.relative_to(copy): path for name in PACKAGES for path in _files(copy / name)}
    for name in there.keys() - source.keys():
        there[name].unlink()
    for name, path in source.items():
        content = path.read_bytes()
        if name not in there or there[name].read_bytes() != content:
            target = copy / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
    (copy / COMMIT_OF_COPY).write_text(code_commit() or "", encoding="utf-8")


def code_records(root: Path) -> dict[str, dict[str, str]]:
    """Digests of the files of each stage, by the stage's module, in the folder with the code.

    A stage's files are its module, all that it imports at any remove, the modules that these import by name, and the
    files beside them that are no Python, such as templates.
    """
    stages = [path.stem for path in sorted((root / "stages").glob("*.py")) if path.stem[0] != "_"]
    digest = cache(_digest)  # most files belong to several stages
    read: dict[Path, list[str]] = {}
    return {
        name: {file.relative_to(root).as_posix(): digest(file) for file in sorted(_files_of(name, root, read))}
        for name in stages
    }


def check_code(record: str) -> None:
    """Check that this process runs the code that `inputs` recorded; say what has been edited since."""
    recorded: Mapping[str, str] = read_json(record)
    if changed := _changed(recorded, ROOT):
        raise DataError(
            f"{changed[0]}: must be as it was when {record} was written, before this stage, and was edited since"
            f"{_others(changed)}; run `dvc repro` again to use the edited code"
        )
    if Path.cwd() != ROOT and (edited := _changed(recorded, Path.cwd())):
        sys.stderr.write(
            f"{edited[0]}{_others(edited)}: edited since this run began. This stage uses the code from before; "
            "the next `dvc repro` uses the edited one.\n"
        )


def is_under_dvc() -> bool:
    """Whether DVC runs this process as a stage."""
    return "DVC_STAGE" in os.environ


def add_code(digest: "hashlib._Hash", *parts: str) -> None:
    """Add code to a digest: packages and modules, such as `stages/train.py`; without `parts`, all."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if not parts or any(name == part or name.startswith(f"{part}/") for part in parts):
                digest.update(path.read_bytes())


def _files_of(stage: str, root: Path, read: dict[Path, list[str]]) -> set[Path]:
    def file_of(name: str) -> Path | None:
        if name.partition(".")[0] not in PACKAGES or name == _PUBLIC:
            return None
        path = root.joinpath(*name.split("."))
        candidates = (path / "__init__.py", path.with_suffix(".py"))
        return next((file for file in candidates if file.is_file()), None)

    modules = imported_files(f"stages.{stage}", file_of, read)
    found = set(modules.values())
    for name in modules.keys() & BY_NAME.keys():
        found.update(_files(root / BY_NAME[name]))
    for folder in {file.parent for file in found if file.stem == "__init__"}:
        found.update(path for path in _files(folder) if path.suffix != ".py")
    return found


def _changed(recorded: Mapping[str, str], root: Path) -> list[str]:
    """Files whose content differs from the record."""
    return [name for name, digest in recorded.items() if not (root / name).is_file() or _digest(root / name) != digest]


def _others(files: list[str]) -> str:
    return f" (and {len(files) - 1} more files)" if len(files) > 1 else ""


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def _files(folder: Path) -> list[Path]:
    """All files below a folder, without bytecode."""
    return [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
