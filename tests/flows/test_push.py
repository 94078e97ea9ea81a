"""A push sends what is new: requests to a real S3 server, counted in its log."""

import re
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import s3fs

from tests.flows.test_s3 import ALL, Machines, add_remote, restored
from tests.forked_dvc import forked_dvc
from tests.s3_server import server_on
from tests.small_pipeline import Shell, quiet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

OLD = 60
"""Entries of other runs in the run cache."""


class Server:
    """Requests since the last count."""

    def __init__(self, log: Path) -> None:
        self.log, self.read = log, 0

    def requests(self) -> Counter[str]:
        text = self.log.read_text()
        new, self.read = text[self.read :], len(text)
        return Counter(re.findall(r'"(GET|HEAD|PUT|POST|DELETE) /', new))


@pytest.fixture
def server(s3_port: int, tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "s3").mkdir()
    with server_on(s3_port, tmp_path / "s3"):
        s3fs.S3FileSystem(skip_instance_cache=True).mkdir("pushed")
        yield Server(tmp_path / "s3.log")


def test_a_push_sends_new_entries_of_the_run_cache_alone(
    server: Server, tmp_path: Path, make_pipeline: Callable[[Path], Path], shell: Shell
) -> None:
    checkout = make_pipeline(tmp_path / "a" / "checkout")
    add_remote(checkout, "s3://pushed/dvc", shell)
    forked_dvc(checkout, "repro", "--quiet")
    runs = checkout / ".dvc/cache/runs"
    content = next(runs.glob("*/*/*")).read_bytes()
    for _ in range(OLD):
        key = uuid.uuid4().hex * 2
        (runs / key[:2] / key).mkdir(parents=True)
        (runs / key[:2] / key / key).write_bytes(content)
    machines = Machines(tmp_path, shell, "s3://pushed/dvc")
    first = machines.workspace("a")
    assert restored(first, pull=False) == ALL
    server.requests()
    first.push(quiet)
    assert server.requests()["PUT"] >= OLD + 4
    second = machines.workspace("a", "2")
    assert restored(second, pull=False) == ALL
    second.push(quiet)
    again = server.requests()
    assert again["PUT"] == 0 and again.total() < OLD / 2, again
    forked_dvc(second.root, "push", "--run-cache")
    plain = server.requests()
    assert plain["PUT"] >= OLD  # once this is no longer so, `Pipeline.push` can be that command
    (second.root / "params.yaml").write_text(
        (second.root / "params.yaml").read_text().replace("title: ", "title: New ")
    )
    assert second.run("prepare", quiet).outcome == "ran"
    second.push(quiet)
    new = server.requests()
    assert new["PUT"] == 2 and new.total() < OLD / 2, new  # prepared.txt and the entry of its stage
    assert restored(machines.workspace("b")) == ALL
