"""chunk_grpo/orchestration/commands.py: lines as they come, and an end for all."""

import sys
import time
from pathlib import Path

import pytest

from chunk_grpo.errors import ConfigError
from chunk_grpo.orchestration.commands import Commands, dvc


def test_lines_arrive_while_the_process_runs_and_progress_bars_are_thinned(tmp_path: Path) -> None:
    code = (
        "import sys, time\n"
        "for i in range(50): print(f'{i} of 50', end='\\r', flush=True)\n"
        "print('done', flush=True); time.sleep(1); sys.exit(7)\n"
    )
    arrived: list[tuple[str, float]] = []
    start = time.monotonic()
    status = Commands().run(
        [sys.executable, "-c", code], tmp_path, {}, lambda line: arrived.append((line, time.monotonic()))
    )
    assert status == 7
    assert [line for line, _ in arrived] == ["0 of 50", "done"]
    assert time.monotonic() - arrived[-1][1] > 0.8
    assert start < arrived[0][1]


def test_a_signal_is_added_to_128(tmp_path: Path) -> None:
    code = "import os; os.kill(os.getpid(), 9)"
    assert Commands().run([sys.executable, "-c", code], tmp_path, {}, print) == 137


def test_a_failure_of_dvc_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        dvc(tmp_path, "push")
    assert str(caught.value).startswith(f"dvc push failed in {tmp_path}: you are not inside of a DVC repository")
    assert "\n" not in str(caught.value) and str(caught.value).endswith("and run the same command again.")
