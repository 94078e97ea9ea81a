"""Environment variables that a stage cannot work with: a sentence and exit code 2, before any work."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from chunk_grpo.config import Params
from stages._stage import check_environment, run_stage

REMEDY = "unset it, or start the processes by `accelerate launch` or torchrun"


@dataclass(frozen=True)
class Arguments:
    """None."""


def main(params: Params, arguments: Arguments) -> None:
    raise AssertionError("work was begun")


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


NUMBER = "must be a whole number of at least 0, got"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"RANK": "1"}, f"LOCAL_RANK: must be set together with RANK, got nothing; {REMEDY}"),
        ({"LOCAL_RANK": "3"}, f"RANK: must be set together with LOCAL_RANK, got nothing; {REMEDY}"),
        ({"WORLD_SIZE": "2"}, f"RANK: must be set together with WORLD_SIZE, got nothing; {REMEDY}"),
        ({"WORLD_SIZE": "x"}, f"WORLD_SIZE: {NUMBER} 'x'; {REMEDY}"),
        (
            {"CHUNK_GRPO_PROCESSES": "two"},
            "CHUNK_GRPO_PROCESSES: must be a whole number of at least 1, got 'two'; set one",
        ),
        ({"RANK": "-1"}, f"RANK: {NUMBER} '-1'; {REMEDY}"),
        (dict.fromkeys(("RANK", "LOCAL_RANK", "WORLD_SIZE"), "2"), "RANK: must be below WORLD_SIZE = 2, got 2; "),
    ],
    ids=str,
)
def test_rejects_invalid_environment_variables(
    given: dict[str, str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert run_stage(main, Arguments, ["--manifest", str(tmp_path / "manifest.json")]) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "given",
    [{}, {"RANK": "0"}, {"RANK": "0", "WORLD_SIZE": "1"}, {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4"}],
    ids=str,
)
def test_accepts_variables_of_launchers_and_schedulers(given: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    check_environment()
