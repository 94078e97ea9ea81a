"""chunk-grpo run: the last lines on the screen, and the exit code, of a small pipeline of its own."""

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from chunk_grpo.__main__ import call
from chunk_grpo.artifacts import write_json
from chunk_grpo.artifacts.layout import Layout
from chunk_grpo.config import load_params
from chunk_grpo.orchestration.clones import locked
from infra import run
from tests.conftest import ROOT
from tests.forked_dvc import forked_dvc
from tests.waiting import has_ended, wait_for

WORK = """
import pathlib, signal, sys, time
what, out = sys.argv[1:]
if what == "sentence":
    print("error: params.yaml: wrong", file=sys.stderr)
    sys.exit(2)
if what == "hangs":
    def stop(*_):
        time.sleep(1)  # saves
        print("stopped after iteration 3; kept", flush=True)
        sys.exit(75)
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGHUP, stop)
    pathlib.Path("hangs").touch()
    time.sleep(60)
if what == "sleeps":
    pathlib.Path("hangs").touch()
    time.sleep(60)
if what == "killed":
    import os
    os.kill(os.getpid(), signal.SIGKILL)
pathlib.Path(out).write_text(what)
"""

DRIVER = """
import sys
from pathlib import Path
from chunk_grpo.__main__ import call
from infra import run
run.ROOT, run.params.check, run.require_clone = Path(sys.argv[1]), lambda: None, lambda root: None
run.answer = lambda root: ["the answer"]
sys.exit(call("run", []))
"""


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("template") / "root"
    root.mkdir()
    forked_dvc(root, "init", "--no-scm", "--quiet")
    (root / "work.py").write_text(WORK)
    (root / "params.yaml").write_text("a: 1\n")
    return root


@pytest.fixture
def folder(empty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pipeline of a stage `first`, and a stage `second` that needs it and does what the test writes."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("DVC_SITE_CACHE_DIR", str(tmp_path / "site"))
    return Path(shutil.copytree(empty, tmp_path / "root"))


def started(root: Path, what: str) -> subprocess.Popen[str]:
    (root / "dvc.yaml").write_text(
        textwrap.dedent(f"""
        stages:
          first:
            cmd: exec python work.py ok a.txt
            outs: [a.txt]
          second:
            cmd: exec python work.py {what} b.txt
            deps: [a.txt]
            outs: [b.txt]
        """)
    )
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(root)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def ended(root: Path, what: str) -> tuple[int, list[str]]:
    process = started(root, what)
    said, _ = process.communicate(timeout=120)
    return process.returncode, said.splitlines()


def test_a_finished_run_ends_with_its_answer(folder: Path) -> None:
    begun = ["stage 1 of 2: first", "stage 2 of 2: second"]
    assert ended(folder, "ok") == (0, [*begun, "", "2 stages: 2 ran, 0 were up to date", "the answer"])
    assert "> exec python work.py ok a.txt" in (folder / run.LOG).read_text()
    again = ended(folder, "ok")
    assert again == (0, ["", "2 stages: 0 ran, 2 were up to date", "the answer"])


def test_times_come_from_the_last_run_with_the_same_parameters(tmp_path: Path) -> None:
    text, at = (ROOT / "params.yaml").read_text("utf-8"), Layout.below(str(tmp_path))
    (tmp_path / "params.yaml").write_text(text, "utf-8")
    write_json(load_params(tmp_path / "params.yaml").model_dump(mode="json"), at.settings)
    write_json({"stage": "train@chunk-ws-0", "seconds": 61.5}, at.manifest("train@chunk-ws-0"))
    assert run.durations(tmp_path) == {"train@chunk-ws-0": 61.5}
    (tmp_path / "params.yaml").write_text(text.replace("eta: 0.7", "eta: 0.6"), "utf-8")
    assert run.durations(tmp_path) == {}


def test_the_sentence_of_a_stage_is_the_last_line(folder: Path) -> None:
    code, said = ended(folder, "sentence")
    assert (code, said[-2:]) == (2, ["stage 2 of 2: second", "error: params.yaml: wrong"])
    assert "ERROR: failed to reproduce 'second'" in (folder / run.LOG).read_text()


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (1, "stage second failed with exit code 1: its last lines are above;"),
        (-9, "stage second was ended by SIGKILL: if you did not end it,"),
    ],
)
def test_a_stage_without_a_sentence_is_named(code: int, sentence: str) -> None:
    found, said = run.reason({"stage": "second", "code": code}, run.LOG)
    assert found == 1
    assert said.startswith(sentence)
    assert said.endswith(f"DVC's lines are in {run.LOG}")


def test_a_killed_stage_ends_the_run(folder: Path) -> None:
    code, said = ended(folder, "killed")
    assert code == 1
    assert said[-1].startswith("error: stage second was ended by SIGKILL: ")


def test_what_dvc_itself_refuses_is_the_last_line(folder: Path) -> None:
    code, said = ended(folder, "ok b.txt\n    outs: [c.txt]\n    unknown: 1 #")
    assert code == 2
    assert said[-1].startswith("error: DVC: './dvc.yaml' is invalid")
    assert "take it from git: `git checkout dvc.yaml`. DVC's lines are in" in said[-1]


@pytest.mark.parametrize(
    ("said", "code", "advice"),
    [
        ("'./dvc.lock' is invalid (possible merge conflicts).\n\nWhile scanning", 2, "or delete it: results that the"),
        ("failed to reproduce 'a': 'b' is busy, it is being blocked by:\n  (PID 7): c", 75, "Another run is active"),
        ("Unable to acquire lock. Most likely another DVC process is running", 75, "Another run is active"),
        ("failed to reproduce 'a': output 'b.json' does not exist", 3, "The stage ended without its result"),
        ("anything else", 1, "DVC's lines are in"),
    ],
)
def test_a_refusal_of_dvc_has_its_exit_code_and_advice(said: str, code: int, advice: str, tmp_path: Path) -> None:
    log = tmp_path / "dvc.log"
    log.write_text(f"Running stage 'a':\nERROR: {said}\n", "utf-8")
    found, sentence = run.reason(None, log)
    assert found == code
    assert advice in sentence and "\n" not in sentence
    assert sentence.startswith("DVC: ") and sentence.endswith(f" DVC's lines are in {log}")


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGHUP, marks=pytest.mark.slow), signal.SIGTERM])
def test_a_stop_waits_for_the_stage(number: signal.Signals, folder: Path) -> None:
    process = started(folder, "hangs")
    wait_for(lambda: (folder / "hangs").exists() or process.poll() is not None, 60, "the stage")
    if number == signal.SIGTERM:
        process.send_signal(number)
    else:
        os.killpg(process.pid, number)  # as a terminal does
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 75
    assert said.splitlines()[-1] == "stopped after iteration 3; kept"


def test_a_stop_that_a_stage_says_nothing_about_has_a_sentence(folder: Path) -> None:
    process = started(folder, "sleeps")
    wait_for(lambda: (folder / "hangs").exists() or process.poll() is not None, 60, "the stage")
    process.terminate()
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 75
    assert said.splitlines()[-1].startswith("stopped by SIGTERM: finished stages and checkpoints are kept;")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems tell no child of its parent's end")
def test_dvc_ends_with_the_command(folder: Path) -> None:
    process = started(folder, "hangs")
    wait_for((folder / "hangs").exists, 60, "the stage")
    (dvc,) = psutil.Process(process.pid).children()
    process.kill()
    wait_for(lambda: has_ended(dvc.pid), 30, "the end of DVC")
    os.killpg(process.pid, signal.SIGTERM)  # its stage, which is none of ours
    process.communicate(timeout=30)


@pytest.mark.parametrize(
    ("spoil", "code", "said"),
    [
        (lambda root: (root / "logs").write_text("a file"), 3, "logs/dvc.log: cannot write: Not a directory"),
        (lambda root: (root / ".git").rmdir(), 2, "must be a clone of the repository, for git and DVC, got a folder w"),
    ],
    ids=["not writable", "no git"],
)
def test_a_folder_in_which_nothing_can_run_ends_it_before_dvc_begins(
    spoil: Callable[[Path], object],
    code: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in (".git", ".dvc", "dvc.yaml"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(run, "ROOT", tmp_path)
    monkeypatch.setattr(run.params, "check", lambda: None)
    monkeypatch.setattr(run, "reproduce", None)
    spoil(tmp_path)
    assert call("run", []) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and said in line


def test_a_second_run_leaves_the_first_ones_log_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in (".git", ".dvc", "dvc.yaml", "logs"):
        (tmp_path / name).mkdir()
    (tmp_path / run.LOG).write_text("of the first")
    monkeypatch.setattr(run, "ROOT", tmp_path)
    monkeypatch.setattr(run.params, "check", lambda: None)
    monkeypatch.setattr(run, "_run", None)
    with locked(tmp_path / run.LOCK):
        assert call("run", []) == 75
    assert capsys.readouterr().err.startswith(f"error: {tmp_path}: another `chunk-grpo run` is active in this folder")
    assert (tmp_path / run.LOG).read_text() == "of the first"


def test_wrong_parameters_end_it_before_dvc_begins(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused() -> None:
        raise run.ConfigError("params.yaml: eta")

    monkeypatch.setattr(run, "require_clone", lambda root: None)
    monkeypatch.setattr(run.params, "check", refused)
    monkeypatch.setattr(run, "waited", None)
    assert call("run", []) == 2
    assert capsys.readouterr().err == "error: params.yaml: eta\n"
