"""Files and folders on a local disk or in an object store, written atomically.

A path is local (`artifacts/x.parquet`) or a URL that fsspec supports (`s3://bucket/x.parquet`). Credentials and
endpoint of S3 come from the AWS chain: environment, ~/.aws, instance role. AWS_ENDPOINT_URL selects other endpoints.

Each function raises DataError, with reason and remedy, if a file or folder is missing or cannot be read or written, and
TransientError if the object store does not answer.
"""

import errno
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Literal, TypeAlias

import fsspec

from chunk_grpo.errors import ChunkGrpoError, DataError, TransientError, install_command

Location: TypeAlias = str | Path

_NO_CREDENTIALS = {"NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "CredentialRetrievalError"}
_NO_ANSWER = {
    "EndpointConnectionError",
    "ConnectTimeoutError",
    "ReadTimeoutError",
    "ConnectionClosedError",
    "HTTPClientError",
}


def is_remote(location: Location) -> bool:
    """Whether `location` is a URL rather than a local path."""
    return isinstance(location, str) and "://" in location


def join(location: Location, *parts: str) -> str:
    """`location` with `parts` below it."""
    return "/".join([str(location).rstrip("/"), *parts])


@contextmanager
def output_file(location: Location) -> Iterator[Path]:
    """Yield a local draft of that name; on exit it is moved or uploaded to `location` in one step.

    Missing folders are created. After an error the draft is removed, and the previous file at `location` is unchanged.
    """
    with _output(location) as draft:
        yield draft
        with draft.open("rb") as written:
            os.fsync(written.fileno())
        if is_remote(location):
            filesystem(location).put_file(str(draft), str(location))
        else:
            draft.replace(location)


@contextmanager
def output_dir(location: Location) -> Iterator[Path]:
    """As `output_file`, for a folder: yields an empty folder, which replaces an older one on exit.

    Not atomic in an object store: new files are uploaded one by one, then older ones are deleted.
    """
    with _output(location) as draft:
        draft.mkdir()
        yield draft
        if is_remote(location):
            _upload(draft, location)
        else:
            if Path(location).exists():
                Path(location).replace(draft.parent / "older")
            draft.replace(location)


def put_file(path: Path, location: Location) -> None:
    """Copy a local file to `location` in one step; missing folders are created."""
    if is_remote(location):
        with storage_errors("write", location):
            filesystem(location).put_file(str(path), str(location))
    else:
        with output_file(location) as draft:
            shutil.copyfile(path, draft)


def get_file(location: Location, path: Path) -> None:
    """Copy the file at `location` to a local path, whose folder exists."""
    with storage_errors("read", location):
        filesystem(location).get_file(str(location), str(path))


def remove_file(location: Location) -> None:
    """Remove a file; on a local disk also the folders that are then empty."""
    with storage_errors("write", location):
        filesystem(location).rm_file(str(location))
    if not is_remote(location):
        with suppress(OSError):  # the folder is not empty
            os.removedirs(Path(location).parent)


@contextmanager
def input_file(location: Location) -> Iterator[Path]:
    """Yield a local path with the content of `location`; a remote file is copied temporarily."""
    with ExitStack() as stack:
        with storage_errors("read", location):
            if is_remote(location):
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="chunk-grpo-"))
                path = Path(folder, _name(location))
                filesystem(location).get_file(str(location), str(path))
            else:
                path = Path(location)
                path.open("rb").close()
        yield path


@contextmanager
def input_dir(location: Location) -> Iterator[Path]:
    """As `input_file`, for a folder."""
    with ExitStack() as stack:
        with storage_errors("read", location):
            if is_remote(location):
                path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chunk-grpo-")))
                filesystem(location).get(join(location, ""), str(path), recursive=True)
            else:
                path = Path(location)
                if not path.is_dir():
                    raise FileNotFoundError(errno.ENOENT, "no such folder", str(location))
        yield path


def check_writable(location: Location) -> None:
    """Check before long work that `location` can be written, without creating or changing it."""
    with storage_errors("write", location):
        if is_remote(location):
            filesystem(location).exists(str(location))
            return
        folder = Path(location).parent
        while not folder.exists():
            folder = folder.parent
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"0")
            probe.flush()


def find_files(location: Location, pattern: str) -> list[str]:
    """Sorted paths or URLs of the files in a folder whose relative path matches a glob pattern, such as `*/*.parquet`.

    `**` matches everything below.
    """
    with storage_errors("read", location):
        files = filesystem(location)
        matching = files.glob(join(location, pattern), detail=True)
        found = [path for path, info in matching.items() if info["type"] != "directory"]
        if not found:
            raise FileNotFoundError(errno.ENOENT, f"no file matches {pattern}", str(location))
    if is_remote(location):
        return sorted(files.unstrip_protocol(path) for path in found)
    start = Path(location)
    return sorted(str(start / os.path.relpath(path, start)) for path in found)


def sizes_below(folder: Location) -> dict[str, int]:
    """Sizes in bytes of the files below a folder, by relative path; empty if the folder does not exist."""
    with storage_errors("write", folder):
        files = filesystem(folder)
        found = files.find(str(folder), detail=True)
        root = join(files._strip_protocol(str(folder)), "")
    return {path.removeprefix(root): int(info["size"]) for path, info in found.items()}


@contextmanager
def folder_lock(folder: Location) -> Iterator[None]:
    """Create a local folder and hold an exclusive lock on it; the kernel releases the lock when the process ends.

    Object stores have no locks: no lock is held there.
    """
    with ExitStack() as held:
        if not is_remote(folder):
            with storage_errors("write", folder):
                Path(folder).mkdir(parents=True, exist_ok=True)
                descriptor = os.open(folder, os.O_RDONLY)
                held.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


@contextmanager
def storage_errors(action: Literal["read", "write"], location: Location) -> Iterator[None]:
    """Convert errors of the file system and the object store to errors with the path and the remedy."""
    try:
        yield
    except ChunkGrpoError:
        raise
    except (OSError, ImportError) as error:
        if isinstance(error, OSError) and is_remote(location) and _may_pass(error):
            raise _no_answer(action, location, error) from error
        raise DataError(f"{location}: cannot {action}: {_reason(action, error)}") from error
    except Exception as error:
        name = type(error).__name__
        if name in _NO_CREDENTIALS:
            raise DataError(
                f"{location}: cannot {action}: no S3 credentials ({error}). Set AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or run `aws configure`."
            ) from error
        if name in _NO_ANSWER:
            raise _no_answer(action, location, error) from error
        if (behind := _behind_safetensors(error)) is not None:
            raise DataError(f"{location}: cannot {action}: {_reason(action, behind)}") from error
        raise


def _behind_safetensors(error: Exception) -> OSError | None:
    """The OSError behind a SafetensorError, which has its number only in the text."""
    number = re.search(r"\(os error (\d+)\)", str(error))
    if type(error).__name__ != "SafetensorError" or number is None:
        return None
    return OSError(int(number[1]), os.strerror(int(number[1])))


@contextmanager
def _output(location: Location) -> Iterator[Path]:
    """Yield a draft path; for a local target in the same folder, so that the last step is a rename on one disk."""
    with storage_errors("write", location):
        parent = None if is_remote(location) else Path(location).parent
        if parent is not None:
            parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{_name(location)}.", dir=parent))
        try:
            yield folder / _name(location)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _upload(folder: Path, location: Location) -> None:
    files, root = filesystem(location), str(location).rstrip("/")
    older = sizes_below(root)
    files.put(f"{folder}/", f"{root}/", recursive=True)
    if gone := [join(root, name) for name in older if not (folder / name).exists()]:
        files.rm(gone)


def _name(location: Location) -> str:
    return str(location).rstrip("/").rsplit("/", 1)[-1]


def filesystem(location: Location) -> fsspec.AbstractFileSystem:
    """File system of a path or URL."""
    if not is_remote(location):
        return fsspec.filesystem("file")
    protocol = str(location).split("://", 1)[0]
    if protocol not in fsspec.available_protocols():
        raise DataError(f"{location}: unknown protocol {protocol!r}. Use a path or an s3:// URL.")
    # No listings cache: other processes may write in between.
    return fsspec.core.url_to_fs(str(location), use_listings_cache=False)[0]


def _may_pass(error: OSError) -> bool:
    """Whether the error is transient, such as S3's InternalError, SlowDown or a time-out."""
    passing = (errno.EBUSY, getattr(errno, "EREMOTEIO", errno.EIO))
    named = type(error).__name__ in _NO_ANSWER  # some of botocore's time-outs are OSErrors
    return named or isinstance(error, TimeoutError | ConnectionError) or error.errno in passing


def _no_answer(action: str, location: Location, error: Exception) -> TransientError:
    return TransientError(
        f"{location}: cannot {action}: the object store does not answer as it should ({error}). "
        "Check AWS_ENDPOINT_URL and the network, then run again."
    )


MAKE_ROOM = (
    "Make room and run again: `make gc` lists what nothing needs any more, and `make gc DELETE=1` removes it; "
    '"A full disk" in docs/operations.md has more. Not with `dvc gc`: it removes results that are needed.'
)


def _reason(action: Literal["read", "write"], error: OSError | ImportError) -> str:
    if isinstance(error, ImportError):
        return f"{error}. Install the extra: {install_command('pipeline')}."
    if isinstance(error, FileNotFoundError):
        detail = error.strerror or "no such file"
        remedy = "Run the stage that writes it (`dvc repro`), or fix the path."
        if action == "write":
            remedy = "Does the bucket or folder exist?"
        return f"{detail[0].lower()}{detail[1:]}. {remedy}"
    if isinstance(error, PermissionError):
        return f"no permission ({error}). Change the owner or the mode, the S3 policy or keys, or the path."
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"no space left on the disk; nothing was changed. {MAKE_ROOM}"
    if error.errno == errno.EROFS:
        return "the disk is read-only. Choose another path, or mount it for writing."
    return f"{error.strerror or error}."
