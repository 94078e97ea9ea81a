"""Publish the results of a finished workspace at stable paths, such as DEST/PRESET/scores/base/clip.parquet.

`run.json` records the run of the files, with size and hash of each. It is written before any file is overwritten,
without the files to be overwritten, and again after all files are copied. A file with the recorded size and hash
therefore belongs to that run, even if a publication was interrupted.
"""

from __future__ import annotations

import argparse
import fcntl
import glob
import hashlib
import os
import re
import shutil
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

import fsspec
import yaml
from rich.console import Console

from chunk_grpo.artifacts.io import read_text
from chunk_grpo.artifacts.run_record import (
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
    is_remote,
    join,
    output_file,
    storage_errors,
)
from chunk_grpo.errors import ChunkGrpoError, ConfigError, DataError
from chunk_grpo.git import resolved
from chunk_grpo.progress import Meter

MODELS = ".safetensors"
BLOCK = 2**20
PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""Valid single component of a path or URL."""


@dataclass(frozen=True)
class Publication:
    """Result of `publish`.

    Attributes:
        location: The preset's folder.
        copied: Number of copied files.
        copied_bytes: Total size of the copied files.
        unchanged: Number of files that were published already.
        removed: Number of removed files of an older run.
        superseded: Whether another publication of the preset started meanwhile; this one then stopped.
    """

    location: str
    copied: int
    copied_bytes: int
    unchanged: int
    removed: int
    superseded: bool


def publish(workspace: Path, destination: Location, run: RunFacts, models: bool = False) -> Publication:
    """Copy params.yaml, dvc.lock and artifacts/ of a workspace to `destination`/PRESET, `run.json` last.

    Files that are published already, by `run.json` and their size, are not copied again; files only of an older run are
    removed at the end. After an error or a kill no file is partial, and the next call completes the publication.

    Args:
        workspace: Local folder with params.yaml. No stage may be running in it.
        destination: Folder or URL.
        run: Run that made the files.
        models: Whether to copy *.safetensors as well; otherwise they stay in DVC's cache.

    Raises:
        ConfigError: The preset's name is not a valid folder name.
        DataError: There is nothing to publish, a file cannot be read or written, or the destination has a run.json
            of another program.
        TransientError: the object store does not answer.
    """
    if not PLAIN_NAME.fullmatch(run.preset):
        raise ConfigError(
            f"preset: must be letters, digits, '.', '_' and '-' to name a folder, got {run.preset!r}"
        )
    target = join(destination, run.preset)
    sources = _sources(workspace, models)
    check_writable(join(target, RECORD))
    files = {}
    with Meter("reading what to publish", len(sources)) as meter:
        for path, source in sources.items():
            with storage_errors("read", source):
                files[path] = _identity(source)
            meter.advance(note=path)
    record = RunRecord(
        publication=uuid.uuid4().hex,
        run=run,
        published_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        complete=True,
        files=files,
        older=(),
    )
    with folder_lock(target):
        return _exchange(target, sources, record)


@contextmanager
def folder_lock(folder: Location) -> Iterator[None]:
    """Create a local folder and hold an exclusive lock on it; the kernel releases the lock when the process ends.

    Object stores have no locks: no lock is held there.

    Raises:
        DataError: The folder cannot be created.
    """
    if is_remote(folder):
        yield
        return
    with storage_errors("write", folder):
        Path(folder).mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:
            os.close(descriptor)
            raise
    try:
        yield
    finally:
        os.close(descriptor)


def sizes_below(folder: Location) -> dict[str, int]:
    """Sizes in bytes of the files below a folder, by relative path; empty if the folder does not exist.

    Raises:
        DataError: The folder cannot be read.
        TransientError: the object store does not answer.
    """
    with storage_errors("write", folder):
        files, root = _files(folder)
        found = files.find(root, detail=True)
    return {path.removeprefix(f"{root}/"): int(info["size"]) for path, info in found.items()}


def _sources(workspace: Path, models: bool) -> dict[str, Path]:
    """Published path to source file. Hidden files are skipped: they are DVC's, or drafts of killed stages."""
    if not (workspace / "params.yaml").exists():
        raise DataError(
            f"{workspace}: must be a workspace, got a folder without params.yaml. Check the path."
        )
    own = {name: workspace / name for name in ("params.yaml", "dvc.lock") if (workspace / name).exists()}
    artifacts = workspace / "artifacts"
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
    for name in (*own, RECORD):
        if name in found:
            raise DataError(
                f"{found[name]}: reserved name: the publisher writes {name} itself. Rename the artifact."
            )
    return own | found


def _raise(error: OSError) -> None:
    raise error


def _exchange(target: str, sources: Mapping[str, Path], record: RunRecord) -> Publication:
    """Make the files at `target` match `record`."""
    there, run_json = sizes_below(target), join(target, RECORD)
    before = read_record(run_json) if RECORD in there else replace(record, files={})
    kept = {
        path: file
        for path, file in record.files.items()
        if before.files.get(path) == file and there.get(path) == file.size
    }
    missing = [path for path in record.files if path not in kept]
    older = tuple(sorted({*before.files, *before.older} - record.files.keys()))
    if not before.complete or before.older:
        _remove_drafts(target, {RECORD, *before.files, *before.older, *record.files})
    if missing:
        begun = replace(record, complete=False, files=kept, older=tuple(sorted({*missing, *older})))
        write_record(begun, run_json)
    copied = _copy_all(target, missing, sources, record)
    superseded = bool(missing) and _is_superseded(record, run_json)
    gone = [] if superseded else [path for path in older if path in there]
    if not superseded:
        write_record(replace(record, older=older), run_json)
        for path in gone:
            _remove(target, path)
        if older:
            write_record(record, run_json)
    size = sum(record.files[path].size for path in copied)
    return Publication(target, len(copied), size, len(kept), len(gone), superseded)


def _copy_all(
    target: str, missing: Sequence[str], sources: Mapping[str, Path], record: RunRecord
) -> list[str]:
    """Copy missing files and return their paths; stop when another publication has started."""
    copied: list[str] = []
    with Meter(f"publishing to {target}", len(missing)) as meter:
        for path in missing:
            if _is_superseded(record, join(target, RECORD)):
                break
            _copy(sources[path], record.files[path], join(target, path))
            copied.append(path)
            meter.advance(note=path)
    return copied


def _is_superseded(record: RunRecord, run_json: str) -> bool:
    """Whether another publication has started, which is possible without locks; the newest one wins."""
    return read_record(run_json).publication != record.publication


def _identity(path: Path) -> PublishedFile:
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as stream:
        while block := stream.read(BLOCK):
            digest.update(block)
            size += len(block)
    return PublishedFile(size, digest.hexdigest())


def _copy(source: Path, expected: PublishedFile, location: str) -> None:
    with output_file(location) as draft:
        if is_remote(location):
            draft.symlink_to(source.resolve())  # uploaded from its source, without a second local copy
        else:
            shutil.copyfile(source, draft)
        if _identity(draft) != expected:
            raise DataError(
                f"{source}: must not change while it is published, but its content changed. "
                "Publish when no stage is running in this workspace."
            )


def _remove(target: str, path: str) -> None:
    location = join(target, path)
    with storage_errors("write", location):
        files, full = _files(location)
        files.rm_file(full)
        if not is_remote(target):
            for folder in Path(location).relative_to(target).parents:
                if folder.name and not any((Path(target) / folder).iterdir()):
                    (Path(target) / folder).rmdir()


def _remove_drafts(target: str, paths: set[str]) -> None:
    """Remove drafts that a killed publication left beside its files; keep drafts of other writers."""
    if is_remote(target):
        return
    with storage_errors("write", target):
        for path in paths:
            place = Path(target, path)
            for draft in place.parent.glob(f".{glob.escape(place.name)}.*"):
                shutil.rmtree(draft)


def _files(location: Location) -> tuple[fsspec.AbstractFileSystem, str]:
    """File system of a location that passed `check_writable`, and the path in it."""
    if not is_remote(location):
        return fsspec.filesystem("file"), str(Path(location).absolute())
    found: tuple[fsspec.AbstractFileSystem, str] = fsspec.core.url_to_fs(
        str(location), use_listings_cache=False
    )
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Publish a workspace from the command line.

    Args:
        argv: The command line, by default the process's.

    Returns:
        The exit code: 0, or that of the error.
    """
    options = _parser().parse_args(argv)
    workspace = Path(options.workspace)
    try:
        run = RunFacts(
            preset=options.preset or _preset(workspace),
            commit=options.commit or _commit(workspace),
            flow_run=options.flow_run,
        )
        done = publish(workspace, options.destination, run, options.models)
    except ChunkGrpoError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    text = (
        f"{done.location}: {done.copied} files copied ({done.copied_bytes / 2**20:.1f} MiB), "
        f"{done.unchanged} unchanged, {done.removed} removed"
    )
    if done.superseded:
        text += "; stopped because another publication of this preset has started"
    Console().print(text, markup=False, highlight=False, soft_wrap=True)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m chunk_grpo.artifacts.publishing", description=__doc__)
    parser.add_argument("destination", metavar="DEST", help="folder or URL, such as s3://bucket/published")
    parser.add_argument("--workspace", default=".", help="folder of params.yaml (default: current folder)")
    parser.add_argument("--preset", help="folder below DEST (default: `composed_from` of params.yaml)")
    parser.add_argument("--commit", help="commit of the code (default: HEAD of the workspace)")
    parser.add_argument("--flow-run", default="", help="name of the flow run (default: none)")
    parser.add_argument("--models", action="store_true", help=f"copy *{MODELS} as well")
    return parser


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


if __name__ == "__main__":
    sys.exit(main())
