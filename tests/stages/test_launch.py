"""A stage in several processes: one command line, one exit code, one that writes."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from chunk_grpo.artifacts import read_manifest, read_table
from chunk_grpo.environment import PROCESSES
from chunk_grpo.errors import ConfigError
from stages._launch import processes as _launch
from stages._launch.processes import run_processes
from tests.checkpoints import checkpoints
from tests.conftest import ROOT, VARIANT, Workspace
from tests.stages.started import Started
from tests.waiting import wait_for

BEGUN = "tiny 2 true 1"


@pytest.fixture
def started(tmp_path: Path) -> Started:
    return Started(tmp_path, processes=2)


def test_all_processes_run_and_the_first_one_writes_what_a_stage_writes(started: Started, tmp_path: Path) -> None:
    assert started.ended("nothing") == (0, "", "")
    assert started.all_say(BEGUN)
    assert read_manifest(tmp_path / "runs" / "test@a.json").stage == "test@a"


@pytest.mark.slow
def test_without_gpus_there_are_as_many_processes_as_params_yaml_says(tmp_path: Path) -> None:
    """The default has two; each has one thread, whatever the machine has."""
    started = Started(tmp_path, 2, asks=False)
    assert started.ended("nothing", OMP_NUM_THREADS="3") == (0, "", "")
    assert started.all_say(BEGUN)


@pytest.mark.slow
def test_a_port_in_use_is_worth_another_try() -> None:
    """In a process of its own: a launcher kills what its process has started."""
    code = """
import socket
from stages._launch.elastic import Job, Machines, Stop, launch
with socket.socket() as other:
    other.bind(("127.0.0.1", 0))
    other.listen()
    job = Job("a", ["-c", "pass"], ".", None, 2, "127.0.0.1", other.getsockname()[1])
    outcome = launch(job, Machines(), Stop(), 5, on_cpu=True)
print(outcome.code, outcome.account)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert re.fullmatch(r"75 error: port \d+ could not be used \(.+\); run the same command again\n\n", done.stdout)


@pytest.mark.slow
def test_common_error_is_printed_once(started: Started) -> None:
    code, _, errors = started.ended("fail")
    assert code == 75
    assert errors.startswith("error: all of us\n") or errors.endswith("error: all of us\n")
    assert not (started.folder / "runs").exists()


def test_the_failure_of_one_ends_all_with_its_message(started: Started) -> None:
    code, _, errors = started.ended("the second fails")
    assert code == 1
    assert "process 1 of 2 ended with exit code 1:\n" in errors
    assert errors.splitlines()[-1] == "KeyError: 'the second'"
    assert started.says(0) == "saved"


@pytest.mark.parametrize(
    ("reaches", "number"),
    [
        pytest.param("the launcher", signal.SIGTERM, marks=pytest.mark.slow),
        ("all", signal.SIGINT),
        pytest.param("the launcher", signal.SIGHUP, marks=pytest.mark.slow),
    ],
)
def test_stop_reaches_all_processes_and_is_printed_once(reaches: str, number: signal.Signals, started: Started) -> None:
    """A terminal sends it to all of them."""
    with started.start("train") as process:
        wait_for(lambda: started.all_say("begun"), 60, "both")
        process.send_signal(number) if reaches == "the launcher" else os.killpg(process.pid, number)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 75
    assert started.all_say("saved")
    name = number.name if reaches == "all" else "SIGTERM"
    assert re.fullmatch(f"stopped by ({name}|SIGTERM). [^\n]*\n", errors)


@pytest.mark.slow
def test_a_second_ctrl_c_ends_all_at_once(started: Started) -> None:
    with started.start("hang") as process:
        wait_for(lambda: started.all_say("begun"), 60, "both")
        process.send_signal(signal.SIGINT)
        wait_for(lambda: started.all_say("asked"), 60, "both asked")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=10)
    assert (process.returncode, errors) == (75, "")


@pytest.mark.slow
def test_processes_that_hang_are_killed_when_the_time_of_a_stop_is_over(started: Started) -> None:
    with started.start("hang", CHUNK_GRPO_STOP_SECONDS="2") as process:
        wait_for(lambda: started.all_say("begun"), 60, "both")
        process.terminate()
        _, errors = process.communicate(timeout=10)
    assert process.returncode == 137
    assert errors == ("a process was killed 2 s after the stop (CHUNK_GRPO_STOP_SECONDS): what it was saving is lost\n")


@pytest.mark.slow
def test_the_others_may_save_after_one_was_killed(started: Started) -> None:
    code, _, errors = started.ended("the second is killed")
    assert (code, errors.splitlines()[-1]) == (137, "process 1 of 2 was ended by SIGKILL")
    assert started.says(0) == "saved"


@pytest.mark.slow
def test_a_stop_that_cannot_save_keeps_the_code_of_that_failure(started: Started) -> None:
    with started.start("full") as process:
        wait_for(lambda: started.all_say("begun"), 60, "both")
        process.terminate()
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (3, "error: no room for it\n")


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's own")
@pytest.mark.parametrize("by_another", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_processes_end_with_the_one_that_started_them_or_its_parent(by_another: bool, started: Started) -> None:
    command = started.command("train")
    if by_another:
        command = [sys.executable, "-c", f"import subprocess; subprocess.run({command!r})"]
    with subprocess.Popen(command, cwd=started.folder, env=started.environment(), stderr=subprocess.DEVNULL) as first:
        wait_for(lambda: started.all_say("begun"), 60, "both")
        first.kill()
    wait_for(lambda: started.all_say("saved"), 60, "both saved")


@pytest.mark.parametrize(
    ("gpus", "machines", "share", "count"),
    [(1, 1, 4, 1), (2, 1, 4, 2), (3, 1, 4, 2), (8, 1, 4, 4), (4, 1, 5, 1), (1, 2, 4, 1), (8, 2, 16, 8), (8, 2, 12, 6)],
)
def test_there_are_as_many_processes_as_gpus_can_share_the_trajectories(
    gpus: int, machines: int, share: int, count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _launch._fitting(gpus, machines, lambda: share) == count
    each = " of each machine" if machines > 1 else ""
    unused = f"{count} of {gpus} GPUs{each} are used: the {share} trajectories of an update cannot"
    assert capsys.readouterr().err.startswith(unused if count < gpus else "")


def test_a_stage_of_one_process_uses_one_machine_and_any_number_uses_all() -> None:
    assert _launch._fitting(8, 4, lambda: 1) == 0
    assert _launch._fitting(8, 4, lambda: None) == 8


def test_machines_that_cannot_share_the_trajectories_are_refused() -> None:
    with pytest.raises(ConfigError, match="PET_NNODES: must divide the 16 trajectories of an update evenly, got 3"):
        _launch._fitting(8, 3, lambda: 16)


def test_externally_launched_process_starts_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv(PROCESSES, "4")
    monkeypatch.setattr(_launch, "run_stage", lambda main, arguments: 42)
    # Or the test runner would start itself.
    monkeypatch.setattr(_launch, "launch", lambda *arguments, **options: 43)
    assert run_processes(lambda params, arguments: None, object, lambda params, arguments: 4) == 42  # type: ignore[type-var]


@pytest.fixture
def shared(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A workspace whose prompts two processes can share, with training still to do."""
    monkeypatch.setenv(PROCESSES, "2")
    workspace.schedule(prompts_per_iteration=4, iterations=4)
    (workspace.artifacts / "train" / VARIANT).rename(workspace.root / "older")
    (workspace.artifacts / "runs" / f"train@{VARIANT}-0.json").unlink()
    return workspace


def finish(workspace: Workspace) -> dict[str, bytes]:
    """Train to the end; weights and metrics."""
    workspace.finish("train")
    assert list((workspace.root / ".ckpt").iterdir()) == []
    return workspace.trained()


@pytest.mark.slow
def test_training_in_two_processes_is_stopped_goes_on_and_ends_the_same(shared: Workspace) -> None:
    whole = finish(shared)
    metrics = read_table(
        shared.artifacts / "train" / VARIANT / "seed-0" / "metrics.parquet", "train_metrics"
    ).to_pylist()
    assert max(row["iteration"] for row in metrics) == 4
    assert read_manifest(shared.artifacts / "runs" / f"train@{VARIANT}-0.json").stage == f"train@{VARIANT}-0"
    (shared.artifacts / "train" / VARIANT).rename(shared.root / "whole")
    with shared.process("train") as process:
        wait_for(lambda: checkpoints(shared.root), 120, "training")
        process.terminate()
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 75, errors
    assert "Traceback" not in errors
    assert not (shared.artifacts / "train" / VARIANT / "seed-0").exists()
    assert finish(shared) == whole


SLOW_SAVE = """
import sys, time
from pathlib import Path
from chunk_grpo.stopping import begin
begin()
from chunk_grpo.training import checkpoint
from stages._launch.processes import run_processes
from stages.train import Arguments, main, shared_rows

write = checkpoint.write_files

def slowly(*given):
    Path("saving").touch()
    time.sleep(10)
    return write(*given)

checkpoint.write_files = slowly
sys.exit(run_processes(main, Arguments, divisible=shared_rows))
"""


@pytest.mark.slow
def test_all_processes_wait_until_the_first_one_has_saved(shared: Workspace) -> None:
    shared.schedule(checkpoint_every=4)
    shutil.rmtree(shared.root / "logs")
    (shared.root / "slow.py").write_text(SLOW_SAVE)
    command = [sys.executable, "slow.py", *shared.options("train")[1]]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=shared.root, env=environment, stderr=subprocess.PIPE, text=True) as process:
        wait_for(lambda: any((shared.root / "logs").rglob("progress.jsonl")), 120, "training")
        process.terminate()
        wait_for((shared.root / "saving").exists, 60, "saving")
        pair = psutil.Process(process.pid).children()
        while not (kept := checkpoints(shared.root)):
            assert [each.status() != psutil.STATUS_ZOMBIE for each in pair] == [True, True]
            time.sleep(0.1)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 75, errors
    assert errors.count(f"; kept in {kept[0].relative_to(shared.root)}. Run the same command again") == 1


@pytest.mark.slow
def test_training_runs_under_accelerate_launch(shared: Workspace) -> None:
    module, options = shared.options("train")
    settings = ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    command = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2", *settings]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [*command, "-m", module, *options], cwd=shared.root, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert (shared.artifacts / "train" / VARIANT / "seed-0" / "metrics.parquet").exists()
