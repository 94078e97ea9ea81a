"""chunk-grpo plan: tables, JSON, exit codes, and no torch before options are read."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from chunk_grpo.__main__ import call
from chunk_grpo.environment import STOP_SECONDS
from chunk_grpo.planning.machines import Machine
from tests.planning.planned import plan

ROOT = Path(__file__).resolve().parents[2]
MAKE_PLAN = "chunk_grpo.planning.plan.make_plan"


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "120")


def test_the_answer_stands_last(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("plan", []) == 0
    printed = capsys.readouterr().out
    answer = printed.rpartition("--all prints")[2]
    assert "\n1 x H100 of 80 GB: yes, " in answer and answer.endswith("to \ndownload.\n")
    assert "What is off" in printed and "The same run on other cards" in printed
    assert "Memory of a GPU" not in printed


def test_tables_and_numbers_of_a_preset(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Of one plan, which is made once."""
    monkeypatch.setattr(MAKE_PLAN, lambda params, machine: plan(params, machine.gpus, price=machine.price))
    options = ["--preset", "flux-dev", "--gpus", "8", "--price", "2.5"]
    assert call("plan", [*options, "--all"]) == 0
    printed = capsys.readouterr().out
    for words in (
        *("11,901,408,320", "An iteration on each GPU: dance", "Memory of a GPU of 80 GB", "lacks"),
        *("142.82 GB", "money at 2.5", "What is off", "2400 of 50000"),
    ):
        assert words in printed
    assert call("plan", [*options, "--json", "--strict"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["weights"] == 11_901_408_320 and found["fits"] is True
    assert found["storage"]["checkpoint"] == 142_816_899_840
    assert {phase["name"] for phase in found["memory"]} >= {"loading", "rollout", "update", "generate"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--gpus", "two"], "argument --gpus: must be a whole number of at least 1, got 'two'"),
        (["--price", "2,5"], "argument --price: must be a number above 0, got '2,5'"),
    ],
)
def test_an_option_that_is_no_number(options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        call("plan", options)
    assert capsys.readouterr().err.splitlines()[-1] == f"chunk-grpo plan: error: {said}"


def test_an_unknown_variant_is_refused_before_anything_is_traced(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(MAKE_PLAN, None)
    assert call("plan", ["--variant", "chunkws"]) == 2
    assert capsys.readouterr().err == "error: --variant: must be one of dance, chunk-ws, nft, got chunkws\n"


def test_the_stop_setting_is_read_and_strict_ends_with_2(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Machine] = []
    cannot = SimpleNamespace(fits=False, to_json=dict)
    monkeypatch.setattr(MAKE_PLAN, lambda _, machine: asked.append(machine) or cannot)
    monkeypatch.setenv(STOP_SECONDS, "30")
    assert call("plan", ["--json"]) == 0
    assert call("plan", ["--json", "--strict"]) == 2
    assert [machine.stop_seconds for machine in asked] == [30.0, 30.0]


@pytest.mark.parametrize("preset", [pytest.param("methods", marks=pytest.mark.slow), "random-scorers"])
def test_every_preset_can_be_planned(preset: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("plan", ["--preset", preset, "--strict"]) == 0
    assert "What is off" in capsys.readouterr().out


def test_an_unknown_preset(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("plan", ["--preset", "nothing"]) == 2
    assert "preset: must be one of" in capsys.readouterr().err


def python(code: str) -> None:
    code = f"import sys; from chunk_grpo.__main__ import call\n{code}"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def test_options_need_no_torch() -> None:
    """Help, and what is wrong with options and params.yaml, is said at once."""
    python(
        "assert call('plan', ['--params', 'nowhere.yaml']) == 2\n"
        "assert not {'torch', 'diffusers', 'dvc'} & set(sys.modules)"
    )


@pytest.mark.slow
def test_params_yaml_needs_no_dvc() -> None:
    python(
        "from chunk_grpo.planning import plan\n"
        "plan.make_plan = lambda *_: sys.exit('dvc' in sys.modules)\n"
        "call('plan', []); raise AssertionError"
    )
