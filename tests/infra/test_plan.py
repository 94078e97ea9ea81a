"""chunk-grpo plan: tables, JSON, exit codes, and no torch before options are read."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from chunk_grpo.__main__ import call
from chunk_grpo.environment import STOP_SECONDS

ROOT = Path(__file__).resolve().parents[2]


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


def test_tables_of_a_preset(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("plan", ["--preset", "flux-dev", "--gpus", "8", "--price", "2.5", "--all"]) == 0
    printed = capsys.readouterr().out
    for words in (
        *("11,901,408,320", "An iteration on each GPU: dance", "Memory of a GPU of 80 GB"),
        *("142.82 GB", "objects in S3", "money at 2.5", "What is off", "2400 of 50000"),
    ):
        assert words in printed


def test_json_has_the_same_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("plan", ["--preset", "flux-dev", "--gpus", "8", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["weights"] == 11_901_408_320 and found["fits"] is True
    assert found["storage"]["checkpoint"] == 142_816_899_840
    assert {phase["name"] for phase in found["memory"]} >= {"loading", "rollout", "update", "generate"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--gpus", "two"], "argument --gpus: must be a whole number, got 'two'"),
        (["--price", "2,5"], "argument --price: must be a number, got '2,5'"),
    ],
)
def test_an_option_that_is_no_number(options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        call("plan", options)
    assert capsys.readouterr().err.splitlines()[-1] == f"chunk-grpo plan: error: {said}"


def test_an_unknown_variant_is_refused_before_anything_is_traced(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("chunk_grpo.planning.plan.make_plan", None)
    assert call("plan", ["--variant", "chunkws"]) == 2
    assert capsys.readouterr().err == "error: --variant: must be one of dance, chunk-ws, nft, got chunkws\n"


def test_strict_ends_with_2_if_something_cannot_work(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--preset", "flux-dev", "--gpus", "1"]
    assert call("plan", options) == 0
    assert call("plan", [*options, "--strict"]) == 2
    assert "NO" in capsys.readouterr().out


def test_the_stop_setting_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STOP_SECONDS, "30")
    assert call("plan", ["--preset", "flux-dev", "--gpus", "8", "--strict"]) == 2


@pytest.mark.parametrize("preset", ["tiny", "methods", "random-scorers", "smoke", "study-vivid"])
def test_every_preset_can_be_planned(preset: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("plan", ["--preset", preset, "--strict"]) == 0
    assert "What is off" in capsys.readouterr().out


def test_an_unknown_preset(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("plan", ["--preset", "nothing"]) == 2
    assert "preset: must be one of" in capsys.readouterr().err


def test_options_need_no_torch() -> None:
    """Help, and what is wrong with options and params.yaml, is said at once; DVC is not imported for params.yaml."""
    heavy = "{'torch', 'diffusers', 'dvc'}"
    code = (
        "import sys; from chunk_grpo.__main__ import call\n"
        "assert call('plan', ['--params', 'nowhere.yaml']) == 2\n"
        f"assert not {heavy} & set(sys.modules); call('plan', []); assert 'dvc' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
