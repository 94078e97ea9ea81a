"""The shared entry of a stage, as a process of its own and by its parts."""

import os
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest
from torch import distributed

from chunk_grpo.artifacts import read_manifest, read_table
from chunk_grpo.config import Params
from chunk_grpo.errors import DataError, TransientError
from stages._stage import let_memory_grow, run_stage, value
from tests.conftest import ROOT
from tests.stages.started import Started
from tests.waiting import wait_for


@pytest.fixture
def started(tmp_path: Path) -> Started:
    return Started(tmp_path)


def test_a_stage_runs_and_leaves_its_manifest(started: Started, tmp_path: Path) -> None:
    assert started.ended("nothing", OMP_NUM_THREADS="3") == (0, "", "")
    assert started.says(0).split() == ["tiny", "3"]
    assert read_manifest(tmp_path / "runs" / "test@a.json").stage == "test@a"


@dataclass(frozen=True)
class Table:
    table: str = value("table to read")


def ended(main: Callable[[Params, Table], None], folder: Path, *options: str) -> int:
    """Exit code of a stage in this process."""
    given = ["--params", str(ROOT / "params.yaml"), "--manifest", str(folder / "runs" / "test.json")]
    return run_stage(main, Table, [*given, "--table", str(folder / "[bold]" / "prompts.parquet"), *options])


def not_reached(params: Params, arguments: Table) -> None:
    raise AssertionError("work was begun")


def test_bad_configuration_is_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = re.sub(r"group_size: \d+", "group_size: 1", (ROOT / "params.yaml").read_text())
    (tmp_path / "params.yaml").write_text(text)
    assert ended(not_reached, tmp_path, "--params", str(tmp_path / "params.yaml")) == 2
    assert capsys.readouterr().err == (
        f"error: {tmp_path}/params.yaml: train.group_size: must be >= 2, got 1. "
        "conf/preset/tiny.yaml describes every key.\n"
    )
    assert not (tmp_path / "runs").exists()


def test_bad_input_and_an_unwritable_manifest_are_exit_code_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names in brackets would be styles to rich; they must stand in the message as they are."""
    assert ended(lambda _, arguments: read_table(arguments.table, "prompts"), tmp_path) == 3
    missing = f"{tmp_path}/[bold]/prompts.parquet"
    assert f"error: {missing}: cannot read: no such file or directory. Run the" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert ended(not_reached, tmp_path, "--manifest", str(tmp_path / "file" / "run.json")) == 3
    assert capsys.readouterr().err.startswith(f"error: {tmp_path}/file/run.json: cannot write: ")


def test_transient_error_exits_75_and_a_bug_is_raised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(error: Exception) -> NoReturn:
        raise error

    assert ended(lambda *_: fail(TransientError("all of us")), tmp_path) == 75
    assert capsys.readouterr().err == "error: all of us\n"
    with pytest.raises(KeyError, match="a bug"):
        ended(lambda *_: fail(KeyError("a bug")), tmp_path)


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ([], 2, "required: --table"),
        (["--table", "a", "--tbl", "x"], 2, "unrecognized arguments: --tbl x"),
        (["--help"], 0, "--table TABLE "),
    ],
)
def test_options_are_explained_and_those_that_are_missing_or_unknown_are_exit_code_2(
    options: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run_stage(not_reached, Table, options)
    assert ended.value.code == code
    assert said in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("work", "number"),
    [("load", signal.SIGTERM), ("wait", signal.SIGINT), pytest.param("wait", signal.SIGHUP, marks=pytest.mark.slow)],
)
def test_a_stop_signal_ends_a_stage_at_once(work: str, number: signal.Signals, started: Started) -> None:
    """Also where all errors of a library are caught."""
    with started.start(work) as process:
        wait_for(lambda: started.says(0), 30, "the work")
        process.send_signal(number)
        _, errors = process.communicate(timeout=10)
    assert process.returncode == 75
    assert errors.startswith(f"stopped by {number.name}. Run the same command again;")
    assert errors.count("\n") == 1


def test_a_stop_signal_lets_training_save_first(started: Started, tmp_path: Path) -> None:
    with started.start("train") as process:
        wait_for(lambda: started.all_say("begun"), 30, "the training")
        process.terminate()
        assert process.wait(timeout=10) == 75
    assert started.says(0) == "saved"
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("fails", [False, True])
def test_a_process_leaves_its_group_before_it_ends(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads of the group would abort some processes at their end."""

    @dataclass(frozen=True)
    class Arguments:
        """Nothing."""

    def main(params: Params, arguments: Arguments) -> None:
        distributed.init_process_group("gloo", rank=0, world_size=1, store=distributed.HashStore())
        if fails:
            raise DataError("no such row")

    for name, number in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, number)
    options = ["--params", str(ROOT / "params.yaml"), "--manifest", str(tmp_path / "run.json")]
    assert run_stage(main, Arguments, options) == (3 if fails else 0)
    assert not distributed.is_initialized()


@pytest.mark.parametrize("own", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", None])
def test_memory_of_a_gpu_grows_in_place_unless_the_environment_says_otherwise(
    own: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    for name in names:
        monkeypatch.setenv(name, "max_split_size_mb:64")
        if name != own:
            monkeypatch.delenv(name)
    let_memory_grow()
    expected = {own: "max_split_size_mb:64"} if own else {names[0]: "expandable_segments:True"}
    assert {name: os.environ[name] for name in names if name in os.environ} == expected
