"""The shared entry of a stage, as a process of its own and by its parts."""

import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from chunk_grpo.artifacts import read_manifest
from chunk_grpo.config import Params
from stages._stage import argument, run_stage
from tests.waiting import wait_for

ROOT = Path(__file__).resolve().parents[2]

STAGE = '''"""A stage for tests."""
import os, sys, time
from chunk_grpo.stopping import STOP, begin
begin()
from dataclasses import dataclass, field
from pathlib import Path
from chunk_grpo.artifacts import read_table, write_text
from chunk_grpo.errors import DataError, TransientError
from stages._stage import argument, run_stage

@dataclass(frozen=True)
class Arguments:
    work: str = field(metadata=argument("what to do"))
    out: str = field(metadata=argument("where to write"))
    tables: tuple[str, ...] = field(default=(), metadata=argument("tables to read"))

def main(params, arguments):
    if arguments.work == "write":
        write_text(params.composed_from, arguments.out)
    elif arguments.work == "read":
        for table in arguments.tables:
            read_table(table, "prompts")
    elif arguments.work == "retry":
        raise TransientError("try again later")
    elif arguments.work == "bug":
        raise KeyError("a bug")
    elif arguments.work == "wait":
        Path(arguments.out).write_text(str(os.getpid()))
        time.sleep(60)
    elif arguments.work == "load":
        try:
            Path(arguments.out).write_text(str(os.getpid()))
            time.sleep(60)
        except Exception as error:
            raise DataError("a damaged file") from error
    elif arguments.work == "train":
        with STOP.deferred():
            Path(arguments.out).write_text(str(os.getpid()))
            while not STOP.requested:
                time.sleep(0.01)
            Path(arguments.out).write_text("checkpoint")

if __name__ == "__main__":
    sys.exit(run_stage(main, Arguments))
'''


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    """A stage's command line but for what it shall do."""
    script = tmp_path / "stage.py"
    script.write_text(STAGE)
    options = ["--params", str(ROOT / "params.yaml"), "--manifest", str(tmp_path / "runs" / "test@a.json")]
    return [sys.executable, str(script), *options, "--out", str(tmp_path / "out.txt")]


def environment(**more: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "40"} | more


def run(command: list[str], *more: str, **variables: str) -> subprocess.CompletedProcess[str]:
    done: subprocess.CompletedProcess[str] = subprocess.run(
        [*command, *more], env=environment(**variables), capture_output=True, text=True, timeout=60
    )
    return done


def test_a_stage_runs_leaves_its_marker_and_its_manifest(command: list[str], tmp_path: Path) -> None:
    done = run(command, "--work", "write", STAGE_RUN_MARKER=str(tmp_path / "marker"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "out.txt").read_text() == "tiny"
    assert (tmp_path / "marker").exists()
    assert read_manifest(tmp_path / "runs" / "test@a.json").stage == "test@a"


def test_bad_configuration_is_exit_code_2_without_a_traceback(command: list[str], tmp_path: Path) -> None:
    text = re.sub(r"group_size: \d+", "group_size: 1", (ROOT / "params.yaml").read_text())
    (tmp_path / "params.yaml").write_text(text)
    done = run(command, "--work", "write", "--params", str(tmp_path / "params.yaml"))
    assert done.returncode == 2
    assert done.stderr == (
        f"error: {tmp_path}/params.yaml: 1 problem\n  train.group_size: must be >= 2, got 1\n"
        "conf/preset/tiny.yaml describes every key.\n"
    )
    assert not (tmp_path / "runs").exists()


def test_bad_input_is_exit_code_3(command: list[str], tmp_path: Path) -> None:
    """Names in brackets would be styles to rich; they must stand in the message as they are."""
    missing = str(tmp_path / "[bold]" / "prompts.parquet")
    done = run(command, "--work", "read", "--tables", missing, STAGE_RUN_MARKER=str(tmp_path / "marker"))
    assert done.returncode == 3
    assert done.stderr == (
        f"error: {missing}: cannot read: no such file or directory. "
        "Run the stage that writes it (`dvc repro`), or fix the path.\n"
    )
    assert (tmp_path / "marker").exists()


def test_an_unwritable_manifest_is_exit_code_3(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run(command, "--work", "write", "--manifest", str(tmp_path / "file" / "run.json"))
    assert done.returncode == 3
    assert done.stderr.startswith(f"error: {tmp_path}/file/run.json: cannot write: ")


def test_what_may_pass_is_exit_code_75_and_a_bug_keeps_its_traceback(command: list[str]) -> None:
    done = run(command, "--work", "retry")
    assert (done.returncode, done.stderr) == (75, "error: try again later\n")
    done = run(command, "--work", "bug")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "KeyError: 'a bug'")


def test_options_are_explained_and_those_that_are_missing_or_unknown_are_exit_code_2(
    command: list[str],
) -> None:
    assert run(command).returncode == 2
    done = run(command, "--work", "write", "--wrk", "x")
    assert (done.returncode, "unrecognized arguments: --wrk x" in done.stderr) == (2, True)
    done = run(command, "--help", COLUMNS="100")
    assert (done.returncode, "A stage for tests." in done.stdout) == (0, True)
    assert "--tables TABLES [TABLES ...]" in done.stdout


SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("work", ["wait", "load"])
def test_a_stop_signal_ends_a_stage_at_once(
    work: str, number: signal.Signals, command: list[str], tmp_path: Path
) -> None:
    """Also where all errors of a library are caught."""
    with subprocess.Popen([*command, "--work", work], env=environment(), stderr=subprocess.PIPE) as process:
        wait_for(lambda: (tmp_path / "out.txt").is_file() and (tmp_path / "out.txt").read_text(), 30, "work")
        process.send_signal(number)
        assert process.wait(timeout=10) == 75
        assert process.stderr is not None
        told = process.stderr.read()
    assert told.startswith(f"error: stopped by {number.name}. Run the same command again;".encode())
    assert told.count(b"\n") == 1


def test_a_stop_signal_lets_training_save_first(command: list[str], tmp_path: Path) -> None:
    with subprocess.Popen([*command, "--work", "train"], env=environment()) as process:
        wait_for(lambda: (tmp_path / "out.txt").is_file() and (tmp_path / "out.txt").read_text(), 30, "work")
        process.terminate()
        assert process.wait(timeout=10) == 75
    assert (tmp_path / "out.txt").read_text() == "checkpoint"
    assert not (tmp_path / "runs").exists()


def test_an_argument_of_another_type_is_refused() -> None:
    @dataclass(frozen=True)
    class Arguments:
        ratio: float = field(metadata=argument("a ratio"))

    def main(params: Params, arguments: Arguments) -> None:
        raise AssertionError("not reached")

    with pytest.raises(TypeError, match=r"Arguments\.ratio: must be str, int or tuple\[str, \.\.\.\]"):
        run_stage(main, Arguments, [])
