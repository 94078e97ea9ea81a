"""The DVC remote on a real S3 server: machines that share nothing else, and what can go wrong on the way."""

import hashlib
import shutil
from pathlib import Path

import pytest
import s3fs

from chunk_grpo.git import resolved
from chunk_grpo.orchestration.clones import make_clone
from chunk_grpo.orchestration.commands import Commands
from chunk_grpo.orchestration.outcomes import RemoteError
from chunk_grpo.orchestration.pipeline import Pipeline
from chunk_grpo.orchestration.workspace import share_cache
from tests.small_pipeline import Shell, quiet

STAGES = ["prepare", "train@a", "train@b", "report"]
MODEL = "models/a.txt"


def restored(workspace: Pipeline, *, pull: bool = True) -> dict[str, str]:
    """Outcome of each stage that cache and remote know."""
    return {name: found.outcome for name, found in workspace.restore(STAGES, quiet, pull=pull).items()}


ALL = dict.fromkeys(STAGES, "restored")


class Machines:
    """Folders that stand for machines: each has a checkout with a DVC cache of its own, and workspaces of runs."""

    def __init__(self, root: Path, shell: Shell, url: str) -> None:
        self.root, self.shell, self.url = root, shell, url

    def workspace(self, machine: str, run: str = "1") -> Pipeline:
        """Clone as a flow run makes it, with the cache of the machine's checkout."""
        checkout, clone = self.root / machine / "checkout", self.root / machine / "runs" / run
        if not checkout.exists():
            self.shell(self.root, "git", "clone", "--quiet", str(self.root / "a" / "checkout"), str(checkout))
        make_clone(checkout, resolved(checkout, "HEAD"), clone)
        share_cache(checkout, clone)
        return Pipeline(clone, Commands())

    def cache(self, machine: str) -> dict[str, str]:
        """The objects in the cache of a machine, with what they should be named after."""
        folder = self.root / machine / "checkout" / ".dvc" / "cache" / "files" / "md5"
        files = [path for path in folder.rglob("*") if path.is_file()]
        return {path.relative_to(folder).as_posix(): name_of(path.read_bytes()) for path in files}


def name_of(content: bytes) -> str:
    """An object's name, but for the suffix that a list of files has."""
    digest = hashlib.md5(content).hexdigest()
    return f"{digest[:2]}/{digest[2:]}"


def add_remote(checkout: Path, url: str, shell: Shell) -> None:
    """Commit the URL alone: endpoint and credentials are a machine's own."""
    shell(checkout, "dvc", "remote", "add", "-d", "store", url)
    shell(checkout, "git", "commit", "--quiet", "--all", "--message", "remote")


@pytest.fixture
def machines(finished_template: Path, bucket: str, tmp_path: Path, shell: Shell) -> Machines:
    """Machine `a` has run the pipeline; nothing is in the bucket yet, and no other machine has anything."""
    shutil.copytree(finished_template, tmp_path / "a" / "checkout", symlinks=True)
    add_remote(tmp_path / "a" / "checkout", f"{bucket}/dvc", shell)
    return Machines(tmp_path, shell, f"{bucket}/dvc")


def pushed_by(machines: Machines, machine: str = "a", run: str = "1") -> Pipeline:
    """A workspace with every stage, all of which it has pushed."""
    workspace = machines.workspace(machine, run)
    assert restored(workspace, pull=False) == ALL
    workspace.push(quiet)
    return workspace


def store() -> s3fs.S3FileSystem:
    """The server, for what a test does there by itself."""
    return s3fs.S3FileSystem(use_listings_cache=False, skip_instance_cache=True)


def object_of(workspace: Pipeline, output: str) -> str:
    """Path of an output in cache and remote, by dvc.lock."""
    lock = (workspace.root / "dvc.lock").read_text()
    md5 = lock.split(f"path: {output}\n", 1)[1].split("md5: ", 1)[1].split()[0]
    return f"files/md5/{md5[:2]}/{md5[2:]}"


def test_a_machine_with_nothing_gets_all_from_the_bucket(machines: Machines) -> None:
    """It has the commit alone: no dvc.lock, an empty cache."""
    first = pushed_by(machines)
    second = machines.workspace("b")
    assert not (second.root / "dvc.lock").exists()
    assert restored(second, pull=False) == {}
    assert restored(second) == ALL
    assert (second.root / "dvc.lock").read_text() == (first.root / "dvc.lock").read_text()
    for output in ("prepared.txt", MODEL, "models/b.txt", "artifacts/report/report.md"):
        assert (second.root / output).read_bytes() == (first.root / output).read_bytes(), output
    assert not list(second.root.glob("*.pid"))
    assert machines.cache("b") == machines.cache("a")


FAULTS = {
    "wrong secret": ({"AWS_SECRET_ACCESS_KEY": "wrong"}, "Forbidden"),
    "unknown key": ({"AWS_ACCESS_KEY_ID": "somebody"}, "Forbidden"),
    "no credentials": ({"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None}, "Unable to locate credentials"),
    "no server": ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "Could not connect to the endpoint URL"),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_bucket_that_can_not_be_used_costs_nothing(
    machines: Machines, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables, reason = FAULTS[fault]
    workspace, kept = machines.workspace("a"), machines.cache("a")
    assert restored(workspace, pull=False) == ALL
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with monkeypatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value) if value else patch.delenv(name)
        with pytest.raises(RemoteError, match=rf"(?s)^dvc push exited with 255\..*{reason}") as error:
            workspace.push(quiet)
        assert error.value.may_pass is (fault == "no server")
        assert machines.cache("a") == kept
        assert (workspace.root / MODEL).exists()
        with pytest.raises(RemoteError, match=rf"(?s)^dvc repro --pull exited with 255\..*{reason}") as error:
            restored(machines.workspace("b"))
        assert error.value.may_pass is (fault == "no server")
    workspace.push(quiet)
    assert restored(machines.workspace("b", "2")) == ALL


@pytest.mark.slow
def test_a_missing_bucket_is_not_an_empty_one(machines: Machines) -> None:
    """Else machine `b` would compute everything again before it finds out."""
    name = machines.url.removeprefix("s3://").split("/")[0]
    store().rmdir(name)
    workspace = machines.workspace("a")
    assert restored(workspace, pull=False) == ALL
    with pytest.raises(
        RemoteError, match=r"(?s)^dvc push exited with 255\. Check the remote's URL.*NoSuchBucket"
    ) as error:
        workspace.push(quiet)
    assert not error.value.may_pass
    with pytest.raises(RemoteError, match=rf"{machines.url}: The specified bucket does not exist") as error:
        restored(machines.workspace("b"))
    assert not error.value.may_pass
    store().mkdir(name)
    assert restored(machines.workspace("b", "2")) == {}
    workspace.push(quiet)
    assert restored(machines.workspace("b", "3")) == ALL


@pytest.mark.slow
def test_half_an_object_is_no_result(machines: Machines) -> None:
    """A damaged object of the bucket is named, not used, and not computed again."""
    first = pushed_by(machines)
    key = object_of(first, MODEL)
    content = store().cat_file(f"{machines.url}/{key}")
    store().pipe_file(f"{machines.url}/{key}", content[: len(content) // 2])
    second = machines.workspace("b")
    with pytest.raises(
        RemoteError, match=f"Damaged in the remote, or in transfer: {key}. If this happens again, del"
    ) as error:
        restored(second)
    assert error.value.may_pass
    assert not (second.root / MODEL).exists()
    assert key.removeprefix("files/md5/") not in machines.cache("b")
    store().rm_file(f"{machines.url}/{key}")
    third = machines.workspace("b", "2")
    assert restored(third) == {"prepare": "restored", "train@b": "restored"}
    assert third.run("train@a", quiet).outcome == "ran"
    third.push(quiet)
    assert store().cat_file(f"{machines.url}/{key}") == content
    assert restored(machines.workspace("c")) == ALL


@pytest.mark.slow
def test_half_an_entry_of_the_run_cache_is_no_result(machines: Machines) -> None:
    first = pushed_by(machines)
    (entry,) = (
        path
        for path in store().find(f"{machines.url}/runs")
        if b"models/a.txt\n" in store().cat_file(path).split(b"outs:")[1]
    )
    content = store().cat_file(entry)
    store().pipe_file(entry, content[: len(content) // 2])
    with pytest.raises(RemoteError, match=r"^dvc repro --pull exited with 255"):
        restored(machines.workspace("b"))
    first.push(quiet)  # whoever has it whole sends it again
    assert restored(machines.workspace("b", "2")) == ALL


@pytest.fixture
def server_folder(machines: Machines, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The server's folder of the remote's objects."""
    name = machines.url.removeprefix("s3://")
    (folder,) = tmp_path_factory.getbasetemp().glob(f"s3[0-9]*/{name.split('/')[0]}")
    return folder / "dvc"


@pytest.mark.slow
def test_missing_object_fails_instead_of_recomputing(machines: Machines, server_folder: Path) -> None:
    """DVC would: it tells the error and runs the stage."""
    first = pushed_by(machines)
    broken = server_folder / object_of(first, MODEL)
    broken.rename(server_folder / "kept")
    (broken / "in-the-way").mkdir(parents=True)
    (broken / "in-the-way" / "file").touch()
    with pytest.raises(RemoteError, match=r"(?s)goes on from what has arrived.*failed to transfer") as error:
        restored(machines.workspace("b"))
    assert error.value.may_pass
    shutil.rmtree(broken)
    (server_folder / "kept").rename(broken)
    assert restored(machines.workspace("b", "2")) == ALL


@pytest.mark.slow
def test_a_push_that_leaves_something_out_is_an_error(machines: Machines, server_folder: Path) -> None:
    """An entry of the run cache cannot be written."""
    first = pushed_by(machines)
    (entry, *_) = sorted(path for path in (server_folder / "runs").rglob("*") if path.is_file())
    entry.unlink()
    (entry / "in-the-way").mkdir(parents=True)
    with pytest.raises(
        RemoteError, match=r"(?s)^push of the run cache exited with 1\. The next run goes on.*was not sent: "
    ):
        first.push(quiet)
    shutil.rmtree(entry)
    first.push(quiet)
    assert restored(machines.workspace("b")) == ALL
