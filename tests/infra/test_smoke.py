"""The check of the whole chain says why it did not work."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from infra import smoke
from infra.local_prefect import LocalPrefect
from infra.setup import SetUpError


def test_server_start_failure_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(prefect: LocalPrefect) -> None:
        raise SetUpError("server ended with 3; see server.log")

    monkeypatch.setattr(LocalPrefect, "running", refuse)
    monkeypatch.setattr(smoke, "stop_on_signals", lambda: None)
    monkeypatch.setattr(sys, "argv", ["smoke"])
    assert smoke.main() == 1
    assert "error: server ended with 3; see server.log" in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_that_fails_is_reported(tmp_path: Path, make_pipeline: Callable[[Path], Path]) -> None:
    root = make_pipeline(tmp_path / "root")
    command = [sys.executable, "-m", "infra.smoke", "--preset", "nonsense"]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert result.returncode == 1
    assert "nonsense" in result.stdout.replace("\n", "")
    assert "finished in state 'Failed'" in (result.stdout + result.stderr).replace("\n", " ")
