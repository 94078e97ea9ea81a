"""A server or a machine that is killed while objects go to or come from the DVC remote."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from chunk_grpo.orchestration.commands import Commands
from chunk_grpo.orchestration.outcomes import RemoteError
from chunk_grpo.orchestration.pipeline import Pipeline
from tests.flows.test_s3 import Machines, add_remote, name_of, store
from tests.s3_server import server_on
from tests.small_pipeline import Shell, quiet

pytestmark = pytest.mark.slow

BULK = """\
stages:
  bulk:
    cmd: python -m stages.bulk bulk
    deps: [stages/bulk.py]
    outs: [bulk/many, bulk/big.bin]
  pair:
    cmd: python -m stages.bulk pair
    deps: [stages/bulk.py]
    outs: [pair/one.bin, pair/two.bin]
"""
BIG, MANY = 120 * 2**20, 200
"""Bytes of an object that is sent in parts, and how many files a folder has."""

BULK_PY = f"""\
import random
import sys
from pathlib import Path

small = {{f"many/{{number}}": 50_000 for number in range({MANY})}}
files = {{"bulk": small | {{"big": {BIG}}}, "pair": {{"one": {BIG} // 2, "two": {BIG} // 2}}}}[sys.argv[1]]
for name, size in files.items():
    file = Path(sys.argv[1], f"{{name}}.bin")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(random.Random(name).randbytes(size))
"""


@pytest.fixture
def bulk(pipeline: Path, tmp_path: Path, shell: Shell) -> Machines:
    """Machine `a` has made large objects and many small ones; the server on `s3_port` has yet to be started."""
    (pipeline / "dvc.yaml").write_text(BULK)
    (pipeline / "stages" / "bulk.py").write_text(BULK_PY)
    (pipeline / ".gitignore").write_text("/bulk/\n/pair/\n__pycache__/\n")
    shell(pipeline, "git", "add", "--all")
    add_remote(pipeline, "s3://drill/dvc", shell)
    for stage in ("bulk", "pair"):
        assert Pipeline(pipeline, Commands()).run(stage, quiet).outcome == "ran"
    (tmp_path / "a").mkdir()
    pipeline.rename(tmp_path / "a" / "checkout")
    return Machines(tmp_path, shell, "s3://drill/dvc")


@contextmanager
def killed_when(condition: Callable[[], bool], find: Callable[[], psutil.Process]) -> Iterator[None]:
    """Kill a process as soon as something is so, which must be before the block ends."""
    ended, is_killed = threading.Event(), threading.Event()

    def watch() -> None:
        while not ended.wait(0.005):
            if condition():
                find().kill()
                is_killed.set()
                return

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    assert is_killed.is_set(), "it came to its end before it was to be killed"


def pushing() -> psutil.Process:
    """DVC, as this process has started it."""
    (found,) = (child for child in psutil.Process().children(recursive=True) if "push" in child.cmdline())
    return found


def sizes(paths: Iterable[Path]) -> list[int]:
    """Sizes of files that another process writes, moves and removes."""
    found = []
    for path in paths:
        with suppress(FileNotFoundError):
            found.append(path.stat().st_size)
    return found


def torn(objects: Mapping[str, str]) -> list[str]:
    """Objects whose name is not that of their content."""
    return [name for name, right in objects.items() if name.removesuffix(".dir") != right]


@pytest.mark.parametrize("at", ["many", "big"])
@pytest.mark.parametrize("who", ["server", "machine"])
def test_a_push_that_is_cut_off_leaves_nothing_torn(
    bulk: Machines, s3_port: int, tmp_path: Path, at: str, who: str
) -> None:
    """Killed, the one or the other, among many small objects or in the middle of a large one."""
    data, workspace, kept = tmp_path / "s3", bulk.workspace("a"), bulk.cache("a")
    assert workspace.restore(["bulk"], quiet).keys() == {"bulk"}

    def is_time() -> bool:
        if at == "many":
            return sum(1 for _ in data.glob("drill/dvc/files/md5/*/*")) >= MANY // 4
        return sum(sizes(data.glob(".nanio*/**/*"))) > BIG // 4

    with server_on(s3_port, data) as server:
        store().mkdir("drill")
        process = psutil.Process(server.pid)
        with (
            killed_when(is_time, lambda: process if who == "server" else pushing()),
            pytest.raises(RemoteError, match=r"^dvc push exited with \d+\. The next run goes on") as error,
        ):
            workspace.push(quiet)
    assert error.value.may_pass
    assert bulk.cache("a") == kept
    with server_on(s3_port, data):
        prefix = "drill/dvc/files/md5/"
        # A killed nanio leaves drafts, under names of their own, which it lists.
        files = store()
        paths = [path for path in files.find(prefix) if "/.tmp." not in path]
        there = {path.removeprefix(prefix): name_of(files.cat_file(path)) for path in paths}
        assert torn(there) == []
        assert 0 < len(there) < MANY + 2
        assert bulk.workspace("b").restore(["bulk"], quiet, pull=True) == {}
        workspace.push(quiet)
        assert bulk.workspace("b", "2").restore(["bulk"], quiet, pull=True).keys() == {"bulk"}
        assert bulk.cache("b").items() <= kept.items()


def test_a_pull_that_is_cut_off_leaves_nothing_torn(bulk: Machines, s3_port: int, tmp_path: Path) -> None:
    """Without `verify` DVC keeps, of the second of two files, the part that has arrived as the whole object."""
    data, first = tmp_path / "s3", bulk.workspace("a")
    arriving = tmp_path / "b" / "checkout" / ".dvc" / "cache" / "files" / "md5"
    with server_on(s3_port, data) as server:
        store().mkdir("drill")
        assert first.restore(["pair"], quiet).keys() == {"pair"}
        first.push(quiet)
        second = bulk.workspace("b")
        with (
            killed_when(
                lambda: sum(size > BIG // 4 for size in sizes(arriving.glob("*/*"))) == 2,
                lambda: psutil.Process(server.pid),
            ),
            pytest.raises(RemoteError, match=r"(?s)goes on from what has arrived.*failed to transfer") as error,
        ):
            second.restore(["pair"], quiet, pull=True)
    assert error.value.may_pass
    assert torn(bulk.cache("b")) == []
    assert not (second.root / "pair").exists()
    with server_on(s3_port, data):
        assert bulk.workspace("b", "2").restore(["pair"], quiet, pull=True).keys() == {"pair"}
        assert torn(bulk.cache("b")) == []
