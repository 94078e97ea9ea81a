"""Publish the results of a finished workspace at stable paths, such as DEST/PRESET/scores/base/clip.parquet.

`run.json` records the run of the files, with size and hash of each; a file with both belongs to that run. So a reader
that checks them gets the file of the run that its `run.json` names, or an error, during a publication and after a kill
as well, and never mixes two runs. For that, `run.json` is first written without the hashes of the files that will be
overwritten or removed, and with all hashes after the last file is copied.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import yaml
from rich.console import Console

from chunk_grpo.artifacts.io import read_text
from chunk_grpo.artifacts.layout import ARTIFACTS
from chunk_grpo.artifacts.run_record import (
    NO_RUN,
    RECORD,
    PublishedFile,
    RunFacts,
    RunRecord,
    read_record,
    write_record,
)
from chunk_grpo.artifacts.storage import (
    Location,
    check_writable,
    filesystem,
    folder_lock,
    is_remote,
    join,
    remove_file,
    sizes_below,
    storage_errors,
)
from chunk_grpo.errors import ConfigError, DataError
from chunk_grpo.git import resolved
from chunk_grpo.progress import Meter

MODELS = ".safetensors"
PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""Valid single component of a path or URL."""

_DRAFT = ".publishing"
"""Draft in a local folder; one that a kill leaves is overwritten by the next publication."""


@dataclass(frozen=True)
class Publication:
    """Result of `publish`."""

    location: str
    """The preset's folder."""
    copied: int
    """Number of copied files."""
    copied_bytes: int
    """Total size of the copied files."""
    unchanged: int
    """Number of files that were published already."""
    removed: int
    """Number of removed files of an older run."""


def publish(workspace: Path, destination: Location, run: RunFacts, models: bool = False) -> Publication:
    """Copy params.yaml, dvc.lock and artifacts/ of a workspace, in which no stage runs, to `destination`/PRESET.

    Files that are published already, by `run.json` and their size, are not copied again; files only of an older run are
    removed; *.safetensors stay in DVC's cache without `models`. After an error or a kill no file is partial, and the
    next call completes the publication. DataError if there is nothing to publish, a file has changed meanwhile, the
    destination has a run.json of another program, or another publication of the preset has started there.
    """
    if not PLAIN_NAME.fullmatch(run.preset):
        raise ConfigError(f"preset: must be letters, digits, '.', '_' and '-' to name a folder, got {run.preset!r}")
    target = join(destination, run.preset)
    sources = _sources(workspace, models)
    check_writable(join(target, RECORD))
    files = {}
    with Meter("reading what to publish", len(sources)) as meter:
        for path, source in sources.items():
            with storage_errors("read", source):
                files[path] = PublishedFile.of(source)
            meter.advance(note=path)
    record = RunRecord(run, datetime.now(UTC).isoformat(), files)
    with folder_lock(target):
        return _exchange(target, sources, record)


def _sources(workspace: Path, models: bool) -> dict[str, Path]:
    """Published path to source file. Hidden files are skipped: they are DVC's, or drafts of killed stages."""
    own = {name: workspace / name for name in ("params.yaml", "dvc.lock") if (workspace / name).exists()}
    if "params.yaml" not in own:
        raise DataError(f"{workspace}: must be a workspace, got a folder without params.yaml. Check the path.")
    artifacts = workspace / ARTIFACTS
    found: dict[str, Path] = {}
    with storage_errors("read", artifacts):
        for folder, folders, names in os.walk(artifacts, onerror=_raise):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for name in sorted(names):
                if not name.startswith(".") and (models or not name.endswith(MODELS)):
                    source = Path(folder, name)
                    found[source.relative_to(artifacts).as_posix()] = source
    if not found:
        raise DataError(f"{artifacts}: must hold files to publish, got none. Run the pipeline (`dvc repro`).")
    for name in found.keys() & {*own, RECORD}:
        raise DataError(f"{found[name]}: reserved name: the publisher writes {name} itself. Rename the artifact.")
    return own | found


def _raise(error: OSError) -> None:
    raise error


def _exchange(target: str, sources: Mapping[str, Path], record: RunRecord) -> Publication:
    """Make the files at `target` match `record`."""
    run_json, there = join(target, RECORD), sizes_below(target)
    before = read_record(run_json).files if RECORD in there else {}
    kept = {
        path: file for path, file in record.files.items() if before.get(path) == file and there.get(path) == file.size
    }
    missing = [path for path in record.files if path not in kept]
    older = [path for path in before if path not in record.files]
    begun = replace(record, files=dict.fromkeys([*missing, *older], NO_RUN) | kept)
    write_record(begun, run_json)
    gone = [path for path in older if path in there]
    for path in gone:
        remove_file(join(target, path))
    with Meter(f"publishing to {target}", len(missing)) as meter:
        for path in missing:
            _check_newest(begun, target)
            _copy(sources[path], record.files[path], join(target, path), Path(target, _DRAFT))
            meter.advance(note=path)
    _check_newest(begun, target)
    write_record(record, run_json)
    size = sum(record.files[path].size for path in missing)
    return Publication(target, len(missing), size, len(kept), len(gone))


def _check_newest(begun: RunRecord, target: str) -> None:
    """Stop if another publication has started, which is possible in an object store: it has no locks."""
    if is_remote(target) and read_record(join(target, RECORD)) != begun:
        raise DataError(
            f"{target}: another publication of this preset has started, so this one stopped. Publish again to replace "
            "its files."
        )


def _copy(source: Path, expected: PublishedFile, location: str, draft: Path) -> None:
    """Copy a file in one step: an upload, or on a local disk a rename of `draft`."""
    with storage_errors("write", location):
        if is_remote(location):
            filesystem(location).put_file(str(source), location)
            _check_unchanged(source, source, expected)
            return
        try:
            shutil.copyfile(source, draft)
            _check_unchanged(source, draft, expected)
            Path(location).parent.mkdir(parents=True, exist_ok=True)
            draft.replace(location)
        finally:
            draft.unlink(missing_ok=True)


def _check_unchanged(source: Path, copied: Path, expected: PublishedFile) -> None:
    if PublishedFile.of(copied) != expected:
        raise DataError(
            f"{source}: must not change while it is published, but its content changed. "
            "Publish when no stage is running in this workspace."
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Publish a workspace from the command line; returns the exit code."""
    options = parser().parse_args(argv)
    workspace = Path(options.workspace)
    run = RunFacts(
        preset=options.preset or _preset(workspace),
        commit=options.commit or _commit(workspace),
        flow_run=options.flow_run,
    )
    done = publish(workspace, options.destination, run, options.models)
    text = (
        f"{done.location}: {done.copied} files copied ({done.copied_bytes / 2**20:.1f} MiB), "
        f"{done.unchanged} unchanged, {done.removed} removed"
    )
    Console().print(text, markup=False, highlight=False, soft_wrap=True)
    return 0


def parser() -> argparse.ArgumentParser:
    """Parser of the command line."""
    own = argparse.ArgumentParser(prog="chunk-grpo publish", description=__doc__)
    own.add_argument("destination", metavar="DEST", help="folder or URL, such as s3://bucket/published")
    own.add_argument("--workspace", default=".", help="folder of params.yaml (default: current folder)")
    own.add_argument("--preset", help="folder below DEST (default: `composed_from` of params.yaml)")
    own.add_argument("--commit", help="commit of the code (default: HEAD of the workspace)")
    own.add_argument("--flow-run", default="", help="name of the flow run (default: none)")
    own.add_argument("--models", action="store_true", help=f"copy *{MODELS} as well")
    return own


def _preset(workspace: Path) -> str:
    path = workspace / "params.yaml"
    params = yaml.safe_load(read_text(path))
    if not isinstance(params, dict) or not isinstance(params.get("composed_from"), str):
        raise ConfigError(f"{path}: must have the key `composed_from`. Name the preset with --preset.")
    return str(params["composed_from"])


def _commit(workspace: Path) -> str:
    try:
        return resolved(workspace, "HEAD")
    except (OSError, RuntimeError) as error:
        raise ConfigError(
            f"{workspace}: must be a git checkout, to read the commit ({error}). Name it with --commit."
        ) from error
