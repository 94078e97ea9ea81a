"""The console command chunk-grpo: which module it calls, in which clone, and what is imported for it."""

import importlib
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from chunk_grpo import __main__ as command
from tests.conftest import ROOT


def called(*words: str, cwd: Path, python: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """The command of the code in `python`."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "chunk_grpo", *words],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(python)},
        capture_output=True,
        text=True,
    )


def test_the_console_script_is_this_module() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, function = scripts["chunk-grpo"].partition(":")
    assert getattr(importlib.import_module(module), function) is command.main


def test_help_lists_every_command_and_imports_none(tmp_path: Path) -> None:
    code = (
        "import sys; from chunk_grpo.__main__ import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'infra', 'torch', 'pydantic', 'dvc', 'prefect', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    *shown, imported = done.stdout.splitlines()
    assert imported == "[]"
    assert [line.split()[0] for line in shown if line.startswith("    ") and line[4] != " "] == list(command.COMMANDS)


def test_each_command_says_its_own_name(capsys: pytest.CaptureFixture[str]) -> None:
    for name in command.COMMANDS:
        with pytest.raises(SystemExit) as end:
            command.main([name, "--help"])
        assert end.value.code == 0
        assert capsys.readouterr().out.startswith(f"usage: chunk-grpo {name} [-h]")


def test_every_program_of_the_makefile_is_a_command() -> None:
    recipes = (ROOT / "Makefile").read_text()
    used = {line.split()[0] for line in recipes.split("$(BIN)/chunk-grpo ")[1:]}
    assert used == {"run", "params", "plan", "accept", "score", "track", "gc", "serve", "worker"}
    assert used <= command.COMMANDS.keys()


def test_a_word_that_is_no_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        command.main(["plna"])
    assert end.value.code == 2
    assert "invalid choice: 'plna' (choose from" in capsys.readouterr().err


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone whose command `run` says where it is, and what it was given."""
    folder = tmp_path / "clone"
    (folder / "infra").mkdir(parents=True)
    (folder / "chunk_grpo").mkdir()
    (folder / "deep" / "inside").mkdir(parents=True)
    (folder / "dvc.yaml").touch()
    (folder / "infra" / "__init__.py").touch()
    for name in ("__init__.py", "__main__.py", "errors.py"):
        shutil.copy(ROOT / "chunk_grpo" / name, folder / "chunk_grpo")
    (folder / "infra" / "run.py").write_text("def main(words):\n    print(__file__, words)\n    return 75\n")
    wrong = "from chunk_grpo import errors\ndef main(words):\n    raise errors.ConfigError(errors.__file__)\n"
    (folder / "infra" / "plan.py").write_text(wrong)
    return folder


def test_it_acts_on_the_clone_in_which_it_is_called(clone: Path) -> None:
    done = called("run", "--so", cwd=clone / "deep" / "inside")
    assert (done.stdout, done.returncode) == (f"{clone / 'infra' / 'run.py'} ['--so']\n", 75), done.stderr


def test_an_error_that_a_user_can_mend_is_a_sentence_and_its_exit_code(clone: Path) -> None:
    done = called("plan", cwd=clone)
    assert (done.stderr, done.returncode) == (f"error: {clone / 'chunk_grpo' / 'errors.py'}\n", 2)


def test_elsewhere_it_acts_on_the_clone_of_its_code(clone: Path, tmp_path: Path) -> None:
    done = called("run", cwd=tmp_path, python=clone)
    assert (done.stdout, done.returncode) == (f"{clone / 'infra' / 'run.py'} []\n", 75), done.stderr


def test_the_wheel_alone_says_that_a_clone_is_needed(clone: Path, tmp_path: Path) -> None:
    (clone / "dvc.yaml").unlink()
    for name in ("run", "plan"):
        done = called(name, cwd=tmp_path, python=clone)
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert line.startswith(f"error: chunk-grpo {name} needs a clone of the repository")
        assert "git clone REPOSITORY" in line


def test_child_processes_find_the_programs_beside_this_python(monkeypatch: pytest.MonkeyPatch) -> None:
    own = str(Path(sys.executable).parent)
    environment = {"PATH": f"/elsewhere{os.pathsep}{own}", "DVC_NO_ANALYTICS": "0"}
    monkeypatch.setattr(os, "environ", environment)
    command.use_own_programs()
    assert environment["PATH"] == f"{own}{os.pathsep}/elsewhere"
    assert (environment["DVC_NO_ANALYTICS"], environment["DO_NOT_TRACK"]) == ("0", "1")


def test_completion_knows_options_of_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    for option in ("--gpus", "--scorers", "--to", "--checkpoints", "--pool", "--token-variable"):
        assert f"{option} " in script or f"{option})" in script
    assert script.count("night-24gb-klein") >= 3  # plan, accept, params compose
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
