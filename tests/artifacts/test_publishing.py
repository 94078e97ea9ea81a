"""Published files lie at stable paths, and run.json says which of them belong to the run."""

import hashlib
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from chunk_grpo.artifacts import publishing, table_from_rows, write_table
from chunk_grpo.artifacts.publishing import main, publish
from chunk_grpo.artifacts.run_record import RunFacts, published_text, read_record
from chunk_grpo.errors import ConfigError, DataError

RUN = RunFacts("tiny", "c0ffee", "brave-otter")
NEXT = RunFacts("tiny", "decade", "calm-heron")
MANY = 400
KILL_LIMIT = 60.0
"""Seconds within which a publication must have begun to copy."""


def score(value: float) -> dict[str, object]:
    return {
        "policy": "base", "mode": "base", "train_seed": -1, "prompt_id": "eval-00000", "sample": 0,
        "scorer": "clip", "metric": "score", "value": value,
    }  # fmt: skip


def make_workspace(folder: Path, value: float = 0.25, extra: int = 0) -> Path:
    """A finished workspace; `value` is its only score, `extra` a number of further files of that content."""
    artifacts = folder / "artifacts"
    write_table(
        table_from_rows([score(value)], "scores"), artifacts / "scores" / "base" / "clip.parquet", "scores"
    )
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


def files_below(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def belonging(folder: Path) -> set[str]:
    """What a reader may take for files of the run, by run.json alone."""
    found = set()
    for path, file in read_record(folder / "run.json").files.items():
        content = (folder / path).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (file.size, file.sha256), path
        found.add(path)
    return found


PUBLISHED = {"params.yaml", "dvc.lock", "report/index.html", "scores/base/clip.parquet"}


def test_what_people_read_is_published(workspace: Path, tmp_path: Path) -> None:
    done = publish(workspace, tmp_path / "out", RUN)
    folder = tmp_path / "out" / "tiny"
    assert done.location == str(folder)
    assert (done.copied, done.unchanged, done.removed, done.superseded) == (4, 0, 0, False)
    assert done.copied_bytes == sum((folder / path).stat().st_size for path in PUBLISHED)
    assert files_below(folder) == {*PUBLISHED, "run.json"}
    assert belonging(folder) == PUBLISHED
    record = read_record(folder / "run.json")
    assert (record.run, record.complete, record.older) == (RUN, True, ())
    written = json.loads((folder / "run.json").read_text())
    assert written["published_at"].endswith("+00:00")
    assert (written["preset"], written["flow_run"]) == ("tiny", "brave-otter")


def test_a_text_is_that_of_the_run_or_of_none(workspace: Path, tmp_path: Path) -> None:
    publish(workspace, str(tmp_path / "published"), RUN)
    folder = str(tmp_path / "published" / "tiny")
    record = read_record(f"{folder}/run.json")
    assert published_text(folder, record, "params.yaml") == "composed_from: tiny\n"
    with pytest.raises(
        DataError, match=r"params\.yaml: must be of the run brave-otter, .*Run `chunk-grpo/full`"
    ):
        published_text(folder, replace(record, complete=False), "params.yaml")
    (tmp_path / "published/tiny/params.yaml").write_text("composed_from: other\n")  # of the next run, say
    with pytest.raises(DataError, match=r"params\.yaml: must be of the run brave-otter"):
        published_text(folder, record, "params.yaml")


def test_models_are_published_on_request(workspace: Path, tmp_path: Path) -> None:
    publish(workspace, tmp_path, RUN, models=True)
    assert (tmp_path / "tiny/train/chunk/seed-0/transformer/model.safetensors").read_text() == "weights"
    publish(workspace, tmp_path, RUN)
    assert not (tmp_path / "tiny/train").exists()


def test_only_what_changed_is_copied_again(workspace: Path, tmp_path: Path) -> None:
    publish(workspace, tmp_path, RUN)
    page = tmp_path / "tiny" / "report" / "index.html"
    before = page.stat().st_ino
    make_workspace(workspace, value=0.5)
    done = publish(workspace, tmp_path, NEXT)
    assert (done.copied, done.unchanged) == (1, 3)
    assert page.stat().st_ino == before
    assert belonging(tmp_path / "tiny") == PUBLISHED
    assert read_record(tmp_path / "tiny" / "run.json").run == NEXT


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_text("<p>re")])
def test_what_is_gone_or_cut_off_is_copied_again(
    workspace: Path, tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    publish(workspace, tmp_path, RUN)
    damage(tmp_path / "tiny" / "report" / "index.html")
    assert publish(workspace, tmp_path, RUN).copied == 1
    assert belonging(tmp_path / "tiny") == PUBLISHED


def test_files_of_the_older_run_go_and_files_of_others_stay(workspace: Path, tmp_path: Path) -> None:
    publish(workspace, tmp_path, RUN)
    (tmp_path / "tiny" / "history.parquet").write_text("of another writer")
    (tmp_path / "tiny" / ".history.parquet.x1").mkdir()
    shutil.rmtree(workspace / "artifacts" / "report")
    done = publish(workspace, tmp_path, NEXT)
    assert done.removed == 1
    assert files_below(tmp_path / "tiny") == PUBLISHED - {"report/index.html"} | {
        "run.json",
        "history.parquet",
    }
    assert not (tmp_path / "tiny" / "report").exists()
    assert (tmp_path / "tiny" / ".history.parquet.x1").exists()


@contextmanager
def publishing_of(workspace: Path, destination: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A publication in a process of its own."""
    command = [sys.executable, "-m", "chunk_grpo.artifacts.publishing", destination]
    options = ["--workspace", str(workspace), "--commit", "decade", "--flow-run", "calm-heron"]
    with subprocess.Popen([*command, *options], stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


def kill_when(begun: Callable[[], bool], process: "subprocess.Popen[bytes]") -> None:
    """SIGKILL as soon as `begun`."""
    deadline = time.monotonic() + KILL_LIMIT
    while not begun():
        assert time.monotonic() < deadline and process.poll() is None, "it ended before it could be killed"
        time.sleep(0.001)
    process.kill()
    assert process.wait() == -signal.SIGKILL


def test_a_kill_leaves_whole_files_and_the_next_publication_completes_them(tmp_path: Path) -> None:
    older = make_workspace(tmp_path / "older", 0.25, MANY)
    newer = make_workspace(tmp_path / "newer", 0.5, MANY)
    folder = tmp_path / "out" / "tiny"
    publish(older, tmp_path / "out", RUN)
    last, new = folder / "many" / f"{MANY - 1:04d}.txt", folder / "many" / "0009.txt"
    with publishing_of(newer, str(tmp_path / "out")) as process:
        kill_when(lambda: new.read_text().startswith("0.5"), process)
    assert last.read_text().startswith("0.25")
    for path in folder.glob("many/*.txt"):
        number = int(path.stem)
        assert path.read_text() in (f"0.25 {number}\n" * 4000, f"0.5 {number}\n" * 4000)
    record = read_record(folder / "run.json")
    assert (record.run.flow_run, record.complete) == ("calm-heron", False)
    assert belonging(folder) == PUBLISHED - {"scores/base/clip.parquet"}

    done = publish(newer, tmp_path / "out", NEXT)
    assert (done.copied, done.unchanged) == (MANY + 1, 3)
    assert belonging(folder) == files_below(folder) - {"run.json"} == PUBLISHED | files_of_many()
    assert list(folder.rglob(".*")) == []


def files_of_many() -> set[str]:
    return {f"many/{number:04d}.txt" for number in range(MANY)}


def test_after_a_kill_the_older_run_can_be_published_again(tmp_path: Path) -> None:
    """The files that the killed one overwrote are not taken for the older run's."""
    older = make_workspace(tmp_path / "older", 0.25, MANY)
    newer = make_workspace(tmp_path / "newer", 0.5, MANY)
    (newer / "artifacts" / "first").mkdir()
    (newer / "artifacts" / "first" / "new.html").write_text("only in the newer run")
    folder = tmp_path / "out" / "tiny"
    publish(older, tmp_path / "out", RUN)
    new = folder / "many" / "0009.txt"
    with publishing_of(newer, str(tmp_path / "out")) as process:
        kill_when(lambda: new.read_text().startswith("0.5"), process)
    assert (folder / "first" / "new.html").exists()
    publish(older, tmp_path / "out", RUN)
    assert belonging(folder) == files_below(folder) - {"run.json"} == PUBLISHED | files_of_many()


def test_two_publications_at_once_leave_one_whole_run(tmp_path: Path) -> None:
    one = make_workspace(tmp_path / "one", 0.25, MANY)
    two = make_workspace(tmp_path / "two", 0.5, MANY)
    with (
        publishing_of(one, str(tmp_path / "out")) as first,
        publishing_of(two, str(tmp_path / "out")) as second,
    ):
        assert (first.wait(), second.wait()) == (0, 0)
    assert belonging(tmp_path / "out" / "tiny") == PUBLISHED | files_of_many()
    assert read_record(tmp_path / "out" / "tiny" / "run.json").complete


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"schema": "chunk_grpo.published_run/9"}', "must be chunk_grpo.published_run/1, got chunk"),
        ('{"name": "web-app"}', "must be chunk_grpo.published_run/1, which .*; got another file"),
        ("[]", "must be chunk_grpo.published_run/1, which .*; got another file"),
        ('{"name": ', r"corrupt or no JSON .*\. Choose another destination, or delete"),
    ],
)
def test_a_folder_of_somebody_else_stays_as_it_is(
    workspace: Path, tmp_path: Path, content: str, words: str
) -> None:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "run.json").write_text(content)
    with pytest.raises(DataError, match=rf"tiny/run\.json.*{words}"):
        publish(workspace, tmp_path, RUN)
    assert files_below(tmp_path / "tiny") == {"run.json"}
    assert (tmp_path / "tiny" / "run.json").read_text() == content


def test_there_must_be_something_to_publish(workspace: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"preset: must be letters.*got '\.\./x'"):
        publish(workspace, tmp_path, RunFacts("../x", "", ""))
    (workspace / "artifacts" / "run.json").write_text("")
    with pytest.raises(DataError, match=r"artifacts/run\.json: reserved name"):
        publish(workspace, tmp_path, RUN)
    shutil.rmtree(workspace / "artifacts")
    with pytest.raises(DataError, match="artifacts: cannot read: no such file or directory"):
        publish(workspace, tmp_path, RUN)
    (workspace / "artifacts").mkdir()
    with pytest.raises(DataError, match=r"artifacts: must hold files to publish, got none\. Run the"):
        publish(workspace, tmp_path, RUN)
    (workspace / "params.yaml").unlink()
    with pytest.raises(DataError, match=r"workspace: must be a workspace, got a folder without params\.yaml"):
        publish(workspace, tmp_path, RUN)
    assert not (tmp_path / "tiny").exists()


def test_a_link_into_a_cache_that_lacks_the_file(workspace: Path, tmp_path: Path) -> None:
    (workspace / "artifacts" / "report" / "plot.png").symlink_to(tmp_path / "gone")
    with pytest.raises(DataError, match=r"report/plot\.png: cannot read: no such file"):
        publish(workspace, tmp_path, RUN)


def test_a_file_that_changes_while_it_is_published(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, copyfile = workspace / "artifacts" / "report" / "index.html", shutil.copyfile

    def copy_what_changed(source: Path, target: Path) -> None:
        page.write_text("<p>newer</p>")
        copyfile(source, target)

    monkeypatch.setattr(publishing.shutil, "copyfile", copy_what_changed)
    with pytest.raises(
        DataError, match=r"index\.html: must not change while it is published, but its content"
    ):
        publish(workspace, tmp_path, RUN)
    assert not (tmp_path / "tiny" / "report" / "index.html").exists()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter and none but its owner may write."""
    with tempfile.TemporaryDirectory(prefix="chunk-grpo-test-") as name:
        Path(name).chmod(0o555)
        yield Path(name)
        Path(name).chmod(0o755)


def test_a_folder_that_may_only_be_read(workspace: Path, open_folder: Path) -> None:
    user = os.geteuid()
    if user == 0:  # root may write everywhere: the rest as somebody else
        make_workspace(Path(tempfile.mkdtemp(dir=open_folder)), 0.25)
        workspace = next(open_folder.iterdir())
        workspace.chmod(0o755)
        os.seteuid(pwd.getpwnam("nobody").pw_uid)
    try:
        with pytest.raises(DataError) as caught:
            publish(workspace, open_folder, RUN)
    finally:
        os.seteuid(user)
    assert str(caught.value).startswith(
        f"{open_folder}/tiny/run.json: cannot write: no permission ([Errno 13]"
    )
    assert str(caught.value).endswith("Change the owner or the mode, the S3 policy or keys, or the path.")


def test_the_command_line(
    workspace: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    arguments = [str(tmp_path / "out"), "--workspace", str(workspace)]
    assert main([*arguments, "--commit", "c0ffee"]) == 0
    out, err = capfd.readouterr()
    assert out == f"{tmp_path}/out/tiny: 4 files copied (0.0 MiB), 0 unchanged, 0 removed\n"
    assert "publishing to" in err and "4/4" in err
    assert main([*arguments, "--commit", "c0ffee", "--preset", "mine", "--models"]) == 0
    assert (tmp_path / "out" / "mine" / "train").exists()
    assert main(arguments) == 2
    assert "must be a git checkout, to read the commit" in capfd.readouterr().err
    (workspace / "params.yaml").write_text("seed: 0\n")
    assert main(arguments) == 2
    assert "params.yaml: must have the key `composed_from`" in capfd.readouterr().err


def test_the_commit_is_that_of_the_workspace(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a git hook, which has the variables of another repository."""
    git = ["git", "-C", str(workspace), "-c", "user.name=a", "-c", "user.email=a@b.example"]
    for arguments in (["init", "-q"], ["add", "params.yaml"], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *arguments], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert main([str(tmp_path / "out"), "--workspace", str(workspace)]) == 0
    assert read_record(tmp_path / "out" / "tiny" / "run.json").run.commit == head.stdout.strip()
