"""Published files lie at stable paths, and run.json says which of them belong to the run."""

import hashlib
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import fsspec
import pytest

from chunk_grpo.__main__ import call
from chunk_grpo.artifacts import publishing, read_text, table_from_rows, write_table, write_text
from chunk_grpo.artifacts.publishing import publish
from chunk_grpo.artifacts.run_record import PublishedFile, RunFacts, published_text, read_record
from chunk_grpo.errors import ConfigError, DataError
from tests.waiting import wait_for

RUN = RunFacts("tiny", "c0ffee", "brave-otter")
NEXT = RunFacts("tiny", "decade", "calm-heron", ("train.iterations=2",))
MANY = 20
KILL_LIMIT = 60.0
"""Seconds within which a publication must have begun to copy."""


def score(value: float) -> dict[str, object]:
    row = {"policy": "base", "mode": "base", "train_seed": -1, "prompt_id": "eval-00000", "sample": 0}
    return row | {"scorer": "clip", "metric": "score", "value": value}


def make_workspace(folder: Path, value: float = 0.25, extra: int = 0) -> Path:
    """A finished workspace; `value` is its only score, `extra` a number of further files of that content."""
    location = folder / "artifacts" / "scores" / "base" / "clip.parquet"
    write_table(table_from_rows([score(value)], "scores"), location, "scores")
    files = {
        "params.yaml": "composed_from: tiny\n",
        "dvc.lock": "schema: '2.0'\n",
        "artifacts/.gitignore": "/report\n",
        "artifacts/report/index.html": "<p>report</p>",
        "artifacts/train/chunk/seed-0/transformer/model.safetensors": "weights",
        "artifacts/train/chunk/.metrics.csv.x1/metrics.csv": "draft of a killed stage",
        **{f"artifacts/many/{number:04d}.txt": f"{value} {number}\n" * 4000 for number in range(extra)},
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return make_workspace(tmp_path / "workspace")


def contents(target: str) -> dict[str, bytes]:
    """Content of all files of a preset's folder, by path."""
    files, root = fsspec.core.url_to_fs(target, use_listings_cache=False)
    found: dict[str, bytes] = {path: files.cat_file(path) for path in files.find(root)}
    return {path.removeprefix(f"{root}/"): content for path, content in found.items()}


def names_of_a_whole_run(target: str) -> set[str]:
    """Paths of all published files; fails if paths, sizes or hashes differ from run.json."""
    found = contents(target)
    del found["run.json"]
    record = read_record(f"{target}/run.json")
    assert record.complete
    assert record.files == {
        path: PublishedFile(len(content), hashlib.sha256(content).hexdigest()) for path, content in found.items()
    }
    return set(found)


PUBLISHED = {"params.yaml", "dvc.lock", "report/index.html", "scores/base/clip.parquet"}


MANY_FILES = {f"many/{number:04d}.txt" for number in range(MANY)}


@pytest.fixture(params=["folder", "bucket"])
def destination(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A folder, and a bucket of a real S3 server."""
    return str(tmp_path / "out" if request.param == "folder" else request.getfixturevalue("bucket"))


def test_publishes_complete_run_with_record(workspace: Path, destination: str) -> None:
    done = publish(workspace, destination, RUN)
    target = f"{destination}/tiny"
    assert (done.location, done.copied, done.unchanged, done.removed) == (target, 4, 0, 0)
    assert names_of_a_whole_run(target) == PUBLISHED
    published = contents(target)
    written = json.loads(published.pop("run.json"))
    assert done.copied_bytes == sum(map(len, published.values()))
    assert (written["preset"], written["commit"], written["flow_run"]) == ("tiny", "c0ffee", "brave-otter")
    assert written["published_at"].endswith("+00:00") and written["complete"]


def test_record_without_overrides_reads_as_unchanged_preset(workspace: Path, tmp_path: Path) -> None:
    """As it was written before records had them."""
    publish(workspace, tmp_path, NEXT)
    file = tmp_path / "tiny" / "run.json"
    written = json.loads(file.read_text("utf-8"))
    assert written.pop("overrides") == ["train.iterations=2"]
    file.write_text(json.dumps(written), encoding="utf-8")
    assert read_record(file).run == RunFacts("tiny", "decade", "calm-heron")


def test_only_what_changed_is_copied_again(workspace: Path, tmp_path: Path) -> None:
    publish(workspace, tmp_path, RUN)
    page = tmp_path / "tiny" / "report" / "index.html"
    before = page.stat().st_ino
    make_workspace(workspace, value=0.5)
    done = publish(workspace, tmp_path, NEXT)
    assert (done.copied, done.unchanged) == (1, 3)
    assert page.stat().st_ino == before
    assert names_of_a_whole_run(str(tmp_path / "tiny")) == PUBLISHED
    assert read_record(tmp_path / "tiny" / "run.json").run == NEXT
    publish(workspace, tmp_path, RUN, models=True)
    assert (tmp_path / "tiny/train/chunk/seed-0/transformer/model.safetensors").read_text() == "weights"
    publish(workspace, tmp_path, RUN)
    assert not (tmp_path / "tiny/train").exists()


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_text("<p>re")])
def test_republishes_missing_or_truncated_file(
    workspace: Path, tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    publish(workspace, tmp_path, RUN)
    damage(tmp_path / "tiny" / "report" / "index.html")
    assert publish(workspace, tmp_path, RUN).copied == 1
    assert names_of_a_whole_run(str(tmp_path / "tiny")) == PUBLISHED


def test_files_of_the_older_run_go_and_files_of_others_stay(workspace: Path, destination: str) -> None:
    publish(workspace, destination, RUN)
    others = {f"{destination}/tiny/history.parquet", f"{destination}/tiny-of-somebody/run.json"}
    for location in others:
        write_text("of another writer", location)
    shutil.rmtree(workspace / "artifacts" / "report")
    (workspace / "artifacts" / "report").write_text("a file where a folder was")
    done = publish(workspace, destination, NEXT)
    assert (done.copied, done.unchanged, done.removed) == (1, 3, 1)
    names = PUBLISHED - {"report/index.html"} | {"report"}
    assert set(read_record(f"{destination}/tiny/run.json").files) == names
    assert set(contents(f"{destination}/tiny")) == names | {"run.json", "history.parquet"}
    assert {read_text(location) for location in others} == {"of another writer"}


SLOW = """
import sys, time
from chunk_grpo.__main__ import call
from chunk_grpo.artifacts import publishing
check = publishing._check_unchanged
publishing._check_unchanged = lambda *arguments: (time.sleep(0.1), check(*arguments))
sys.exit(call("publish", sys.argv[1:]))
"""
"""A publication that waits while each file is copied: in a folder after its draft is written."""


@contextmanager
def publishing_of(workspace: Path, destination: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A slow publication in a process of its own."""
    command = [sys.executable, "-c", SLOW, destination]
    options = ["--workspace", str(workspace), "--commit", "decade", "--flow-run", "calm-heron"]
    with subprocess.Popen([*command, *options], stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_kill_leaves_no_mix_of_two_runs(tmp_path: Path, destination: str) -> None:
    """A reader gets the run of its run.json or an error, and any run can be published then."""
    older = make_workspace(tmp_path / "older", 0.25, MANY)
    newer = make_workspace(tmp_path / "newer", 0.5, MANY)
    (newer / "artifacts" / "many" / "0009.x").write_text("only in the newer run, copied after 0009.txt")
    target = f"{destination}/tiny"
    publish(older, destination, RUN)
    held = read_record(f"{target}/run.json")
    files = fsspec.core.url_to_fs(target, use_listings_cache=False)[0]
    with publishing_of(newer, destination) as process:
        wait_for(lambda: files.exists(f"{target}/many/0009.x"), KILL_LIMIT, "the middle")
        process.kill()
        assert process.wait() == -signal.SIGKILL
    last = f"many/{MANY - 1:04d}.txt"
    assert published_text(target, held, last).startswith("0.25")
    with pytest.raises(DataError, match=r"many/0009\.txt: must be of the run brave-otter, .*was interrupted"):
        published_text(target, held, "many/0009.txt")
    found = read_record(f"{target}/run.json")
    assert (found.run.flow_run, found.complete) == ("calm-heron", False)
    for path in ("many/0009.txt", last, "params.yaml"):
        with pytest.raises(DataError, match=r"must be of the run calm-heron, .*Run `chunk-grpo/full`"):
            published_text(target, found, path)
    left = contents(target)
    for path in MANY_FILES:
        sources = [workspace / "artifacts" / path for workspace in (older, newer)]
        assert left[path] in [source.read_bytes() for source in sources], path

    done = publish(older, destination, RUN)
    assert (done.copied, done.unchanged) == (MANY + 1, 3)
    assert names_of_a_whole_run(target) == PUBLISHED | MANY_FILES
    assert published_text(target, held, "many/0009.txt").startswith("0.25")


def test_two_publications_at_once_leave_one_whole_run(tmp_path: Path) -> None:
    one = make_workspace(tmp_path / "one", 0.25, MANY)
    two = make_workspace(tmp_path / "two", 0.5, MANY)
    with publishing_of(one, str(tmp_path / "out")) as first, publishing_of(two, str(tmp_path / "out")) as second:
        assert (first.wait(), second.wait()) == (0, 0)
    assert names_of_a_whole_run(str(tmp_path / "out" / "tiny")) == PUBLISHED | MANY_FILES


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"schema": "chunk_grpo.published_run/9"}', "must be chunk_grpo.published_run/1, got chunk"),
        ('{"name": "web-app"}', "must be chunk_grpo.published_run/1, which .*; got another file"),
        ("[]", "must be chunk_grpo.published_run/1, which .*; got another file"),
        ('{"name": ', r"corrupt or no JSON .*\. Choose another destination, or delete"),
    ],
)
def test_leaves_foreign_folder_unchanged(workspace: Path, tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "run.json").write_text(content)
    with pytest.raises(DataError, match=rf"tiny/run\.json.*{words}"):
        publish(workspace, tmp_path, RUN)
    assert contents(str(tmp_path / "tiny")) == {"run.json": content.encode()}


def test_refuses_to_publish_incomplete_artifacts(workspace: Path, tmp_path: Path) -> None:
    artifacts = workspace / "artifacts"

    def emptied() -> None:
        shutil.rmtree(artifacts)
        artifacts.mkdir()

    with pytest.raises(ConfigError, match=r"preset: must be letters.*got '\.\./x'"):
        publish(workspace, tmp_path, RunFacts("../x", "", ""))
    for change, message in (
        (lambda: (artifacts / "run.json").touch(), r"artifacts/run\.json: reserved name"),
        (lambda: (artifacts / "run.json").unlink() or (artifacts / "x").symlink_to("gone"), "x: cannot read: no such"),
        (emptied, r"artifacts: must hold files to publish, got none\. Run the"),
        (artifacts.rmdir, "artifacts: cannot read: no such file or directory"),
        ((workspace / "params.yaml").unlink, r"must be a workspace, got a folder without params\.yaml"),
    ):
        change()
        with pytest.raises(DataError, match=message):
            publish(workspace, tmp_path, RUN)
    assert not (tmp_path / "tiny").exists()


def test_a_file_that_changes_while_it_is_published(
    workspace: Path, destination: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = publishing._check_unchanged

    def change_and_check(source: Path, copied: Path, expected: PublishedFile) -> None:
        copied.write_text("<p>newer</p>")
        check(source, copied, expected)

    monkeypatch.setattr(publishing, "_check_unchanged", change_and_check)
    message = r"params\.yaml: must not change while it is published, but its content"
    with pytest.raises(DataError, match=message):
        publish(workspace, destination, RUN)
    assert not read_record(f"{destination}/tiny/run.json").complete
    if "://" not in destination:
        assert set(contents(f"{destination}/tiny")) == {"run.json"}


def test_the_command_line(
    workspace: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    arguments = [str(tmp_path / "out"), "--workspace", str(workspace)]
    assert call("publish", [*arguments, "--commit", "c0ffee"]) == 0
    out, err = capfd.readouterr()
    assert out == f"{tmp_path}/out/tiny: 4 files copied (0.0 MiB), 0 unchanged, 0 removed\n"
    assert "publishing to" in err and "4/4" in err
    assert call("publish", [*arguments, "--commit", "c0ffee", "--preset", "mine", "--models"]) == 0
    assert (tmp_path / "out" / "mine" / "train").exists()
    assert call("publish", arguments) == 2
    assert "must be a git checkout, to read the commit" in capfd.readouterr().err
    git = ["git", "-C", str(workspace), "-c", "user.name=a", "-c", "user.email=a@b.example"]
    for command in (["init", "-q"], ["add", "params.yaml"], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *command], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))  # as in a git hook
    assert call("publish", arguments) == 0
    assert read_record(tmp_path / "out" / "tiny" / "run.json").run.commit == head.stdout.strip()
    (workspace / "params.yaml").write_text("seed: 0\n")
    assert call("publish", arguments) == 2
    assert "params.yaml: must have the key `composed_from`" in capfd.readouterr().err
